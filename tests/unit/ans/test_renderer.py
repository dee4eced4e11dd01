"""How much is told at once, and what becomes of the rest: N-22, N-26."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.ans.event import NoticeEvent
from agent_runner.ans.notification import NoticeBatch, NoticeEntry
from agent_runner.ans.renderer import CLOSE, MAX_CHARS, MAX_NOTICES, OPEN, RenderedNotices, compose
from agent_runner.ans.subscriber import parse_subscriber

SUBSCRIBER = parse_subscriber(
    '[subscriber]\nid = "probe"\nname = "n"\n[events]\ntypes = ["a.*"]\n[output]\ntemplate = "a.j2"\n'
)


def made(*sizes: int, priority: str = "normal", order: int = 0) -> NoticeBatch:
    """A notification of one entry a size: so many characters each."""
    return NoticeBatch(
        subscriber=SUBSCRIBER,
        priority=priority,  # type: ignore[arg-type]
        inject_at="after_tool",
        entries=tuple(
            NoticeEntry(
                event=NoticeEvent(type="a.b", source="s", payload={"size": size}), order=order + index
            )
            for index, size in enumerate(sizes)
        ),
    )


def write(batch: NoticeBatch) -> str:
    return "\n".join("x" * entry.event.payload["size"] for entry in batch.entries)


def told(injection: RenderedNotices) -> list[NoticeBatch]:
    return [each.batch for each in injection.delivered if each.text is not None]


def test_nothing_is_nothing():
    assert compose([], write, limit=9_500) == RenderedNotices()


def test_all_that_is_told_is_in_one_wrapper():
    injection = compose([made(3), made(4)], write, limit=9_500)

    assert injection.text == f"{OPEN}\nxxx\nxxxx\n{CLOSE}"


def test_ten_are_told_and_the_others_are_counted_in_one_line_and_wait():
    """N-26."""
    candidates = [made(5) for _ in range(MAX_NOTICES + 4)]

    injection = compose(candidates, write, limit=9_500)

    assert told(injection) == candidates[:MAX_NOTICES]
    assert injection.text.splitlines()[-2] == "more: 4 to be told next"
    assert len(injection.delivered) == MAX_NOTICES


def test_two_thousand_characters_are_told_and_the_others_wait():
    """N-26."""
    candidates = [made(900) for _ in range(4)]

    injection = compose(candidates, write, limit=9_500)

    assert told(injection) == candidates[:2]
    assert "more: 2 to be told next" in injection.text


def test_what_the_host_keeps_may_fill_all_that_a_point_takes():
    """A note of the agent's own has an end: of long ones only one was told a turn."""
    kept = [replace(made(1_900), notice_id=number) for number in range(6)]

    injection = compose([made(900), *kept, made(900)], write, limit=9_500)

    assert [each.notice_id for each in told(injection)] == [None, 0, 1, 2, 3]
    assert len(injection.text) <= 9_500
    assert "3 to be told next" in injection.text


def test_of_what_is_left_the_unimportant_is_summed_up():
    """N-26: `12 tool success events`."""
    candidates = [made(5) for _ in range(MAX_NOTICES)] + [made(1, 1, 1, priority="low") for _ in range(4)]

    injection = compose(candidates, write, limit=9_500)

    assert injection.text.splitlines()[-2] == "more: 12 a.b"
    assert [each.batch for each in injection.delivered] == candidates


@pytest.mark.parametrize("why", ["notice_id", "is_addressed"])
def test_what_somebody_asked_for_is_never_summed_up(why):
    """N-26."""
    low = replace(made(1, priority="low"), **{why: 7 if why == "notice_id" else True})
    candidates = [made(5) for _ in range(MAX_NOTICES)] + [low]

    injection = compose(candidates, write, limit=9_500)

    assert low not in [each.batch for each in injection.delivered]
    assert "more: 1 to be told next" in injection.text


def test_one_that_is_longer_than_all_may_be_together_goes_alone():
    """N-26."""
    candidates = [made(MAX_CHARS + 300), made(3)]

    assert told(compose(candidates, write, limit=9_500)) == candidates[:1]
    assert compose(candidates, write, limit=MAX_CHARS) == RenderedNotices()


def test_a_long_table_is_told_in_parts():
    """N-26."""
    whole = made(*[700] * 8)

    (first,) = told(compose([whole, made(3)], write, limit=9_500))

    assert first.entries == whole.entries[:2]


@pytest.mark.parametrize("limit", [-5, 0, 40, 250])
def test_where_there_is_no_room_nothing_is_told(limit):
    """N-26."""
    assert compose([made(300)], write, limit=limit) == RenderedNotices()


@given(
    sizes=st.lists(st.lists(st.integers(0, 2_400), min_size=1, max_size=5), max_size=25),
    priorities=st.lists(st.sampled_from(["normal", "low", "critical"]), min_size=25, max_size=25),
    limit=st.integers(0, 12_000),
)
def test_whatever_there_is_it_fits_and_what_is_told_is_the_beginning(sizes, priorities, limit):
    """N-26."""
    candidates = [made(*each, priority=word) for each, word in zip(sizes, priorities, strict=False)]

    injection = compose(candidates, write, limit=limit)

    assert len(injection.text) <= limit
    assert len(injection.text) <= max(MAX_CHARS, 2_400) + 300
    whole = told(injection)
    assert len(whole) <= MAX_NOTICES
    assert bool(whole) == bool(injection.text)
    for each, candidate in zip(whole, candidates, strict=False):
        assert each.entries == candidate.entries[: len(each.entries)]
    if limit > 3_000 and candidates:
        assert whole
