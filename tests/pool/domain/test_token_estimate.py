from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.domain import token_probes
from pool.domain.token_estimate import (
    GENERIC,
    Correction,
    error_ratio_of,
    estimate_tokens,
    measure_weights,
    needs_count,
)

# Measured once with SmolLM2's tokenizer: text, its tokens.
PROSE = token_probes.PROSE[0]
PROSE_TOKENS = 83


def test_nothing_has_no_tokens() -> None:
    assert estimate_tokens("") == 0


def test_prose_is_guessed_within_a_sixth() -> None:
    assert estimate_tokens(PROSE) == pytest.approx(PROSE_TOKENS, rel=0.17)


def test_chinese_has_more_tokens_per_character_than_english() -> None:
    chinese = token_probes.CJK[0] * 4

    assert estimate_tokens(chinese) / len(chinese) > 2.5 * estimate_tokens(PROSE) / len(PROSE)


def test_digits_weigh_more_than_letters() -> None:
    assert estimate_tokens("8" * 400) > 2 * estimate_tokens("word " * 80)


def test_a_run_without_breaks_weighs_more_than_words() -> None:
    words, run = ("abcdefgh " * 50).strip(), "abcdefgh" * 50

    assert estimate_tokens(run) > 2 * estimate_tokens(words)


@pytest.mark.parametrize("character", ["é", "д", "न", "中", "한", "🚀"])
def test_each_script_has_a_weight_of_its_own(character: str) -> None:
    number = 3 + ["é", "д", "न", "中", "한", "🚀"].index(character)

    assert estimate_tokens(character * 100) == int(100 * GENERIC[number]) + 1


def test_a_lone_surrogate_is_no_failure() -> None:
    assert estimate_tokens("\ud800") >= 1


@given(st.text(alphabet=string.ascii_letters + " .", min_size=1, max_size=300), st.integers(10, 400))
def test_a_long_text_is_guessed_from_samples_of_it(piece: str, times: int) -> None:
    whole = estimate_tokens(piece * times)

    assert 0 < whole <= len(piece) * times + 1


def test_samples_agree_with_the_whole_text() -> None:
    sampled = estimate_tokens(PROSE * 300)

    assert sampled == pytest.approx(300 * estimate_tokens(PROSE), rel=0.1)


def test_weights_come_from_the_tokenizer() -> None:
    weights = measure_weights(lambda text: len(text.encode()))

    for text in (PROSE, *token_probes.CODE, *token_probes.CJK, *token_probes.TWO_BYTE):
        assert estimate_tokens(text, weights) == pytest.approx(len(text.encode()), rel=0.25)


@pytest.mark.parametrize(
    ("estimate", "edges", "hard_limit", "expected"),
    [
        (100, (512, 2048, None), 8192, False),
        (400, (512, 2048, None), 8192, True),
        (358, (512,), None, False),
        (359, (512,), None, True),
        (512, (512,), None, True),
        (665, (512,), None, True),
        (666, (512,), None, False),
        (7000, (512, 2048, None), 8192, True),
        (7000, (None,), None, False),
        (20_000, (), 8192, False),
        (0, (512,), 8192, False),
    ],
)
def test_only_guesses_near_an_edge_need_a_count(
    estimate: int, edges: tuple[int | None, ...], hard_limit: int | None, expected: bool
) -> None:
    assert needs_count(estimate, edges=edges, hard_limit=hard_limit) is expected


def test_other_scripts_are_guessed_less_well() -> None:
    assert error_ratio_of("plain text") < error_ratio_of("обычный текст")
    assert needs_count(300, edges=(512,), hard_limit=None, error_ratio=error_ratio_of("текст"))
    assert not needs_count(300, edges=(512,), hard_limit=None, error_ratio=error_ratio_of("text"))


def test_a_correction_finds_the_true_ratio() -> None:
    correction = Correction()

    for _ in range(200):
        correction.note(estimate=1000, actual=1800)

    assert correction.apply(500) == pytest.approx(900, rel=0.01)


def test_short_and_odd_answers_move_a_correction_little() -> None:
    correction = Correction()

    correction.note(estimate=5, actual=500)
    correction.note(estimate=100, actual=100_000)

    assert 1 < correction.factor < 1.2
