"""Profiles that a new installation ships. Names, not laws: the measured batch curve of a release decides."""

from __future__ import annotations

from pool.domain.profiles import EngineSettings

_MIB = 2**20

STARTER_PROFILES: dict[str, EngineSettings] = {
    "balanced": EngineSettings(),
    # Few slots and small steps keep the gap between tokens short.
    "interactive": EngineSettings(max_num_seqs=32, max_num_batched_tokens=512),
    "long-context": EngineSettings(max_num_seqs=8, enable_chunked_prefill=True, enable_prefix_caching=True),
    # For a small model on two cores. AVX2 has no bf16 arithmetic: float32 makes 92 tok/s where bf16 makes 26.
    # 256 MiB hold 5,760 tokens of SmolLM2-135M; the context leaves the 20 % reserve of the fit decision.
    # float32 even where bf16 is faster (AMX): measured with vLLM 0.32, bf16 makes this model answer in French.
    "cpu-demo": EngineSettings(
        dtype="float32",
        max_model_len=4096,
        max_num_seqs=32,
        kv_cache_memory_bytes=256 * _MIB,
        enforce_eager=True,
        cpu_threads=1,
        warm_up_budget_s=20,
    ),
}
