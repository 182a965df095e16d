"""Loops are found in what models really say when they loop; ordinary text, code, tables and lists are none."""

from pathlib import Path

import pytest

from pool.domain.repetition import LEAST_SPAN, MOST_LOOKED_AT, repeats_itself

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
SOURCES = sorted(
    [*ROOT.glob("pool/domain/*.py"), *ROOT.glob("static/js/lib/*.js"), *ROOT.glob("templates/*/*.html")]
)
START = "The capital of France is Paris, which lies on the Seine. "
LOOPS = {
    "sentence": "I am sorry, but I cannot help you with that. ",
    "paragraph": "First, we compute the sum of the two numbers. Then we divide it by two, and we obtain the mean.\n\n",
    "word": "the ",
    "list item": "- Buy milk\n",
    "token zero of a broken quantisation": "!",
    "escape": "\\n",
    "code": "    x = x + 1\n",
    "number": "3.14, ",
    "Chinese": "我不知道。",
    "quoted": '"yes", ',
}
TEXTS = {
    "prose": "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light.",
    "table": "| lane | p50 |\n|---|---|\n" + "".join(f"| lane-{n} | {n * 7} |\n" for n in range(30)),
    "rule": "Results\n" + "=" * 100 + "\n",
    "closing braces": "function f() {\n  if (a) {\n    if (b) {\n      g();\n    }\n  }\n}\n" + "}\n" * 12,
    "numbered list": "".join(f"{n}. Step number {n} of the plan\n" for n in range(1, 40)),
    "counting": ", ".join(map(str, range(200))),
    "laughter": "That is a good one! Ha ha ha ha ha ha ha ha ha!",
    "refrain": "Row, row, row your boat\nGently down the stream\nMerrily, merrily, merrily, merrily\nLife is a dream",
    "json rows": ",".join(f'{{"id": {n}, "name": "item {n}", "price": 10}}' for n in range(40)),
    "twice": "This very sentence is said two times, for emphasis, and it is quite a long one, as you can see. " * 2,
}  # fmt: skip


@pytest.mark.parametrize("piece", LOOPS.values(), ids=LOOPS)
def test_a_loop_is_found(piece: str) -> None:
    turns = max(4, 2 * LEAST_SPAN // len(piece))

    assert repeats_itself(START + piece * turns)


@pytest.mark.parametrize("cut", range(1, 45, 6))
def test_a_loop_is_found_wherever_the_answer_was_cut(cut: int) -> None:
    text = START + LOOPS["sentence"] * 6

    assert repeats_itself(text[:-cut])


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_ordinary_text_is_no_loop(text: str) -> None:
    assert not repeats_itself(text)


@pytest.mark.parametrize("files", [PAGES, SOURCES], ids=["pages", "sources"])
def test_no_end_within_our_own_pages_and_sources_looks_like_a_loop(files: list[Path]) -> None:
    ends = [(path, end) for path in files for end in range(200, len(path.read_text()), 331)]

    assert len(ends) > 300
    assert [f"{path.name}:{end}" for path, end in ends if repeats_itself(path.read_text()[:end])] == []


@pytest.mark.parametrize("text", ["", "ok", "a" * 23, " \n" * 500])
def test_what_is_too_short_says_nothing(text: str) -> None:
    assert not repeats_itself(text)


def test_a_period_longer_than_a_third_of_the_tail_is_not_seen() -> None:
    piece = "".join(f"word{n} " for n in range(200))

    assert len(piece) > MOST_LOOKED_AT / 3
    assert not repeats_itself(piece * 5)
