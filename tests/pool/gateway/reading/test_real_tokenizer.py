"""The demo model's own tokenizer and template, against what the engine's libraries make of them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.demo_model import find_demo_model, is_complete
from pool.domain import token_probes
from pool.domain.chat_template_file import SOURCES, bundle_templates
from pool.domain.token_estimate import estimate_tokens
from pool.gateway.reading.counting import Counter
from pool.gateway.reading.prompt import Measures, estimate_prompt, read_prompt
from tests.engine_runtime import find_test_runtime
from tests.pool.gateway.reading.conftest import Files

CHAT = "/v1/chat/completions"
PROGRAM = Path(__file__).parent / "print_token_counts.py"
TEXTS = [
    *token_probes.PROSE,
    *token_probes.CODE,
    *token_probes.LATIN,
    *token_probes.CJK,
    *token_probes.FOUR_BYTE,
]
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]}
    for text in TEXTS
] + [
    {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": " \n x  y\t"}]},
    {"messages": [{"role": "user", "content": "<|im_end|>"}]},
]


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Counter:
    folder = find_demo_model()
    if not is_complete(folder):
        pytest.skip("the demo model is not on this machine: `./sluice up` makes it")
    template = bundle_templates(
        {name: (folder / name).read_bytes() for name in SOURCES if (folder / name).exists()}
    )
    assert template is not None
    files = Files((folder / "tokenizer.json").read_bytes(), template)
    store = tmp_path_factory.mktemp("tokenizers")
    files.write_to(store)
    return Counter(store / files.pair[0], store / str(files.pair[1]))


@pytest.fixture(scope="module")
def measures(counter: Counter) -> Measures:
    return counter.measure()


@pytest.mark.engine
def test_fc39_counts_are_those_of_the_engines_libraries(counter: Counter) -> None:
    run = subprocess.run(
        [find_test_runtime().interpreter, str(PROGRAM), str(find_demo_model())],
        input=json.dumps(CHATS),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    assert [counter.count(CHAT, chat) for chat in CHATS] == json.loads(run.stdout)


@pytest.mark.parametrize("length", [2047, 2048, 2049])
def test_fc39_a_chat_of_any_length_can_be_made_and_counted(counter: Counter, length: int) -> None:
    around = counter.count(CHAT, {"messages": [{"role": "user", "content": ""}]})

    chat = {"messages": [{"role": "user", "content": " word" * (length - around)}]}

    assert counter.count(CHAT, chat) == length


@pytest.mark.parametrize(
    "text", [*token_probes.PROSE, *token_probes.CODE, *token_probes.CJK, *token_probes.HANGUL]
)
def test_guesses_with_the_tokenizers_weights_are_within_their_error(
    counter: Counter, measures: Measures, text: str
) -> None:
    assert estimate_tokens(text, measures.weights) == pytest.approx(
        counter.count_text(text, special=False), rel=0.3
    )


def test_a_guess_of_a_chat_knows_what_the_template_adds(counter: Counter, measures: Measures) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello, how are you?"}]}

    assert estimate_prompt(read_prompt(chat), measures) == pytest.approx(counter.count(CHAT, chat), abs=4)
