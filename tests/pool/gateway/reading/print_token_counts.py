"""Runs inside the engine environment: how many tokens the engine's own libraries make of each conversation.

Arguments: the model's folder. Input: JSON list of objects with messages, and tools where there are some.
"""

import json
import sys

from transformers import AutoTokenizer


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    counts = []
    for one in json.load(sys.stdin):
        text = tokenizer.apply_chat_template(
            one["messages"], tools=one.get("tools"), tokenize=False, add_generation_prompt=True
        )
        counts.append(len(tokenizer.encode(text, add_special_tokens=False)))
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main()
