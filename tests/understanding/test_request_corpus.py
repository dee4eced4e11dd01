"""Everyday requests to the agent without a model: most do what is meant, and none does anything else."""

from __future__ import annotations

import pytest

from tests.understanding import request_corpus
from tests.understanding.request_corpus import Outcome


@pytest.mark.slow
@pytest.mark.parametrize(("language", "least"), [("en", 0.95), ("ko", 0.95)])
async def test_enough_requests_do_what_is_meant_and_none_does_anything_else(
    language: str, least: float
) -> None:
    found = await request_corpus.cases(language)
    print("\n" + request_corpus.table(language, found))
    right = [case for case in found if case.outcome is Outcome.RIGHT]
    assert [case for case in found if case.outcome is Outcome.WRONG] == []
    assert len(right) / len(found) >= least
    assert request_corpus.documented(language) == request_corpus.for_page(language, found)


def test_there_are_enough_requests() -> None:
    counts = {
        language: sum(map(len, families.values())) for language, families in request_corpus.requests().items()
    }
    assert counts["en"] >= 300
    assert counts["ko"] >= 150
