"""A scheduler with the attributes of vLLM 0.32 that the hook reads, stepped by tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class Block:
    block_id: int
    ref_cnt: int = 0
    _block_hash: object = None
    is_null: bool = False


@dataclass
class Pool:
    blocks: list[Block]

    @property
    def num_gpu_blocks(self) -> int:
        return len(self.blocks)

    @property
    def null_block(self) -> Block:
        return self.blocks[0]

    def get_num_free_blocks(self) -> int:
        return sum(not block.ref_cnt for block in self.blocks[1:])


class FullAttentionManager:
    """Named as the engine's: the hook asks for the name."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.req_to_blocks: dict[str, list[Block]] = {}


class SlidingWindowManager(FullAttentionManager):
    pass


@dataclass
class Request:
    request_id: str
    num_prompt_tokens: int = 10
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    status: Any = field(default_factory=lambda: SimpleNamespace(name="RUNNING"))
    events: list[Any] = field(default_factory=list)
    prefill_stats: Any = field(default_factory=lambda: SimpleNamespace(num_cached_tokens=0))


def make_event(name: str, at_s: float) -> Any:
    return SimpleNamespace(type=SimpleNamespace(name=name), timestamp=at_s)


class Scheduler:
    """Runs what tests put into `plan`: for each step the tokens of each request."""

    def __init__(self, *, blocks: int = 33, block_size: int = 16) -> None:
        self.block_size = block_size
        self.max_num_running_reqs = 8
        self.requests: dict[str, Request] = {}
        self.finished_req_ids: set[str] = set()
        self.running: list[str] = []
        self.waiting = 0
        self.plan: list[dict[str, int]] = []
        self.preempted: set[str] = set()
        self.manager = FullAttentionManager(block_size)
        coordinator = SimpleNamespace(single_type_managers=[self.manager])
        pool = Pool([Block(number, is_null=not number) for number in range(blocks)])
        self.kv_cache_manager = SimpleNamespace(block_pool=pool, coordinator=coordinator)
        self.kv_cache_config = SimpleNamespace(kv_cache_tensors=[SimpleNamespace(size=1000)])

    @property
    def pool(self) -> Pool:
        found: Pool = self.kv_cache_manager.block_pool
        return found

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), self.waiting

    def hold(self, name: str, *blocks: int) -> None:
        for number in blocks:
            self.pool.blocks[number].ref_cnt += 1
        self.manager.req_to_blocks.setdefault(name, []).extend(self.pool.blocks[n] for n in blocks)

    def schedule(self, *_: Any, **__: Any) -> Any:
        counts = self.plan.pop(0) if self.plan else {}
        new = [name for name in counts if name not in self.running]
        old = [name for name in counts if name in self.running]
        self.running += new
        output = SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=old,
                resumed_req_ids=set(),
                num_output_tokens=[self.requests[name].num_output_tokens for name in old],
            ),
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
            finished_req_ids=self.finished_req_ids,
            preempted_req_ids=self.preempted,
        )
        self.finished_req_ids, self.preempted = set(), set()
        return output

    def update_from_output(self, output: Any, result: Any = None) -> dict[int, Any]:
        """`result` names requests that end with this step."""
        for name, count in output.num_scheduled_tokens.items():
            request = self.requests[name]
            request.num_computed_tokens += count
            request.num_output_tokens += request.num_computed_tokens >= request.num_prompt_tokens
        for name in result or ():
            self.finish(name, "FINISHED_STOPPED")
        return {}

    def finish(self, name: str, status: str) -> None:
        self.requests.pop(name).status = SimpleNamespace(name=status)
        self.finished_req_ids.add(name)
        if name in self.running:
            self.running.remove(name)
        for block in self.manager.req_to_blocks.pop(name, ()):
            block.ref_cnt -= 1
