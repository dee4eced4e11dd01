"""The bounds within which JSON of containers is read."""

from __future__ import annotations

import tracemalloc

import pytest

from orchestrator.proxies import strict_json
from orchestrator.proxies.strict_json import MAX_NAME_CHARS, MAX_NUMBER_CHARS, MAX_PARTS, NotStrictJson

MARKS = "\u0301" * 150 + "\u0316" * 150


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a" * (MAX_NAME_CHARS + 1), "more than 256 characters"),
        ("a" + MARKS, "more than 256 characters"),
        ("a" + "\u0301" * 20 + "\u0316" * 11, "more than 30 combining marks in a row"),
    ],
    ids=["letters", "marks", "row"],
)
def test_a_name_that_cannot_be_compared_in_little_time_is_refused_before_it_is_folded(
    name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bringing a run of marks into one order takes a time that grows with the square of its length."""
    names: list[str] = []
    real = strict_json.fold_name

    def folded(one: str) -> str:
        names.append(one)
        return real(one)

    monkeypatch.setattr(strict_json, "fold_name", folded)
    with pytest.raises(NotStrictJson, match=reason):
        strict_json.parse(f'{{"a": {{"b": 1, "{name}": 1}}}}'.encode(), folds_names=True)
    assert names == []
    fits = "a" + "\u0301" * 20 + "\u0316" * 10
    strict_json.parse(f'{{"{fits}": 1}}'.encode(), folds_names=True)
    assert names == [fits]


def test_names_whose_marks_stand_in_another_order_are_the_same_to_some_readers() -> None:
    first, second = "a" + "\u0301" * 20 + "\u0316" * 10, "a" + "\u0316" * 10 + "\u0301" * 20
    with pytest.raises(NotStrictJson, match="one meaning"):
        strict_json.parse(f'{{"{first}": 1, "{second}": 2}}'.encode(), folds_names=True)


@pytest.mark.parametrize("piece", [b"11 ", b'""11', b'"" '])
def test_what_has_too_many_parts_is_refused_with_little_memory(piece: bytes) -> None:
    body = piece * 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(NotStrictJson, match=f"more than {MAX_PARTS:,} parts"):
            strict_json.parse(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(body) + 400 * MAX_PARTS, "no object for each part beyond the bound"


def test_a_document_has_exactly_as_many_parts_as_it_may() -> None:
    fits = b"[" + b"1," * (MAX_PARTS - 1) + b"1]"
    assert len(strict_json.parse(fits)) == MAX_PARTS
    with pytest.raises(NotStrictJson, match="parts"):
        strict_json.parse(fits[:-1] + b",1]")
    texts = b"[" + b'"",' * (MAX_PARTS // 2 - 1) + b'""]'
    assert len(strict_json.parse(texts)) == MAX_PARTS // 2


@pytest.mark.parametrize("number", [b"1" * (MAX_NUMBER_CHARS + 1), b"0." + b"1" * MAX_NUMBER_CHARS])
def test_what_has_numbers_longer_than_any_that_is_needed_is_refused_before_they_are_read(
    number: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python reads a long number in a time that grows with the square of its length."""
    loaded: list[bytes] = []
    monkeypatch.setattr(strict_json, "_load", lambda body, **_: loaded.append(body))
    with pytest.raises(NotStrictJson, match="digits"):
        strict_json.parse(b"[" + number + b"]")
    strict_json.parse(b"[" + b",".join([b"1" * 19] * 1_000) + b"]")
    assert len(loaded) == 1, "many ordinary numbers are none"


@pytest.mark.parametrize("text", [r'{"a": "\ud800"}', r'{"\uDC00": 1}', r'{"a": ["\ude00\ud83d"]}'])
def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_read(text: str) -> None:
    with pytest.raises(NotStrictJson, match="no Unicode"):
        strict_json.parse(text.encode(), folds_names=True)
    assert strict_json.parse(rb'{"a": "\ud83d\ude00"}', folds_names=True) == {"a": "\U0001f600"}
