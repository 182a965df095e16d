"""What identifies a person is masked, wherever a text is cut, and in linear time."""

import pytest

from pool.domain.masking import CUT, LONGEST, mask

SECRETS = {
    "jane.doe+x@mail.example.co.uk": "[e-mail]",
    "4111 1111 1111 1111": "[number]",
    "4111-1111-1111-1111": "[number]",
    "+49 (0)170 / 123 45 67": "[number]",
    "0170-1234567": "[number]",
    "DE89 3704 0044 0532 0130 00": "[IBAN]",
    "gb29nwbk60161331926819": "[IBAN]",
    "123456": "[number]",
    "sk-sluice-abcdefgh12345678": "***",
}


@pytest.mark.parametrize(("secret", "masked"), SECRETS.items())
def test_what_identifies_is_masked(secret: str, masked: str) -> None:
    assert mask(f"It is {secret}, they say.") == f"It is {masked}, they say."


@pytest.mark.parametrize(
    "text", ["At 12:30 we were 42.", "2026-03-01", "3.14159", "a@b", "x = 1 + 2", "§ 12345"]
)
def test_ordinary_text_stays(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize("shift", range(0, 40, 3))
def test_nothing_is_shown_of_what_a_cut_goes_through(shift: int) -> None:
    secret = "4111 1111 1111 1111"
    half = LONGEST // 2
    start = "word " * ((half - shift) // 5)
    text = start + secret + " word" * LONGEST + " " + secret + " word" * ((half - shift) // 5)

    masked = mask(text)

    assert CUT in masked
    assert "1111" not in masked
    assert len(masked) <= LONGEST + len(CUT)


@pytest.mark.parametrize(
    "text", ["a" * 400_000, "1 " * 200_000, "a@" * 200_000, "(" * 400_000, "DE12" * 100_000]
)
def test_a_strange_text_costs_no_more_than_its_kept_part(text: str) -> None:
    assert len(mask(text)) <= LONGEST + len(CUT) + 200
