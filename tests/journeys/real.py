"""A tiny random model on a real vLLM: how a journey registers it and waits for its replicas."""

from __future__ import annotations

from typing import Any

from tests.journeys.installation import Installed, wait_until

START_S = 120.0
SMALL = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
    "cpu_threads": 1,
    "warm_up_per_lane": 2,
}


def find_runtime(real: Installed) -> str:
    rows = real.get("runtimes/")["results"]
    return next((row["name"] for row in rows if row["kind"] == "vllm" and row["usable"]), "")


def release(real: Installed, model: str, *, replicas: int = 0) -> None:
    """The first one of a model whose folder lies in the installation's models."""
    real.post("models/", {"name": model, "lanes": [{"name": "all"}]})
    real.post(f"models/{model}/versions/", {"source": f"path:{model}", "name": "v1"})
    wait_until(lambda: real.get(f"models/{model}/versions/v1/")["manifest"], limit_s=30, what="hashed")
    wish = {"version": "v1", "profile": "small", "runtime": find_runtime(real), "replicas": replicas}
    real.post(f"models/{model}/releases/", wish)


def wait_ready(
    real: Installed, model: str, *, generation: int = 1, count: int = 1, limit_s: float = START_S
) -> dict[str, Any]:
    """One of them."""

    def ready() -> list[dict[str, Any]]:
        return [
            row
            for row in real.replicas(model=model)
            if row["phase"] == "ready" and row["generation"] >= generation
        ]

    wait_until(lambda: len(ready()) >= count, limit_s=limit_s, what=f"{model} is ready")
    return ready()[0]
