"""Runs inside the engine environment: starts vLLM once per line of input and prints what its KV cache holds.

Input: JSON list of engine arguments (`vllm.EngineArgs` names). Output: a JSON line per start.
"""

import gc
import json
import sys

from vllm import LLM
from vllm.distributed import cleanup_dist_env_and_memory


def main() -> None:
    for arguments in json.load(sys.stdin):
        try:
            llm = LLM(enforce_eager=True, disable_log_stats=True, **arguments)
        except ValueError as error:
            sys.stdout.write(json.dumps({"refused": str(error)}) + "\n")
            cleanup_dist_env_and_memory()
            continue
        cache = llm.llm_engine.vllm_config.cache_config
        figures = {
            "tokens": cache.kv_cache_size_tokens,
            "blocks": cache.num_gpu_blocks,
            "block_tokens": cache.block_size,
            "context_tokens": llm.llm_engine.vllm_config.model_config.max_model_len,
        }
        sys.stdout.write(json.dumps(figures) + "\n")
        sys.stdout.flush()
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main()
