"""Phrases of a public corpus of times: enough are read right, and none as another time."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from orchestrator.dashboard.words.when import parse_due_time
from orchestrator.domain.dashboard import ToolRefused
from tests.understanding import times_corpora
from tests.understanding.times_corpora import Outcome


@pytest.mark.parametrize(("corpus", "least"), [("en", 0.80), ("ko", 0.94)])
def test_enough_phrases_are_read_right(corpus: str, least: float) -> None:
    found = times_corpora.counts(corpus)
    assert found[Outcome.RIGHT] / found.total() >= least, found


@pytest.mark.parametrize("corpus", ["en", "ko", "refused"])
def test_no_phrase_is_read_as_another_time(corpus: str) -> None:
    wrong = [case for case in times_corpora.cases(corpus) if case.outcome is Outcome.WRONG]
    assert not wrong


def test_each_decided_difference_is_one() -> None:
    """A difference that is gone leaves the list, and the page that shows it."""
    cases = [case for corpus in ("en", "ko") for case in times_corpora.cases(corpus)]
    differing = {case.phrase for case in cases if case.outcome is Outcome.DECIDED}
    assert differing == set(times_corpora.duckling()["decided"])


@pytest.mark.parametrize("corpus", ["en", "ko", "refused"])
def test_the_tools_of_a_model_take_the_same_phrases(corpus: str) -> None:
    """A model's tools read a phrase as everybody does, or refuse it: they take no other moment."""
    now = datetime.fromisoformat(times_corpora.duckling()["now"])
    now_ms, zone = round(now.timestamp() * 1000), ZoneInfo("Etc/GMT+2")
    for case in times_corpora.cases(corpus):
        match case.reading:
            case times_corpora.times.TimeRefusal():
                with pytest.raises(ToolRefused):
                    parse_due_time(case.phrase, now_ms=now_ms, zone=zone)
            case times_corpora.times.Instant(at=moment) | times_corpora.times.Duration(at=moment):
                read_ms = parse_due_time(case.phrase, now_ms=now_ms, zone=zone).at_ms
                assert read_ms == moment.timestamp() * 1000, case.phrase


def test_what_can_mean_several_times_names_the_right_one() -> None:
    """A question has the moment that people mean among its choices."""
    asked = [
        (case.phrase, case.expected, [_start(choice) for choice in case.reading.choices])
        for corpus in ("en", "ko")
        for case in times_corpora.cases(corpus)
        if isinstance(case.reading, times_corpora.times.TimeRefusal) and len(case.reading.choices) > 1
    ]
    assert asked
    assert [one for one in asked if not any(start.startswith(one[1]) for start in one[2])] == []


def _start(choice: times_corpora.times.Reading) -> str:
    match choice:
        case times_corpora.times.DateOnly(day=day):
            return day.isoformat()
        case times_corpora.times.Instant(at=at) | times_corpora.times.Duration(at=at):
            return at.isoformat()
        case _:
            return ""
