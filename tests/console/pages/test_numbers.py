import pytest

from console.pages.numbers import read_whole


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), (" 7 ", 7), ("0", 0), ("", None), ("-1", None), ("1.5", None), ("9" * 5000, None)],
)
def test_typed_numbers_are_whole_and_short(text: str, value: int | None) -> None:
    assert read_whole(text) == value
