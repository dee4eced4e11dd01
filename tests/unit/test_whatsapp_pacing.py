"""How fast messages leave."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.channels.whatsapp.send_rate import MAX_CHATS, SendRate, SendRateLimiter

PACE = SendRate(chat_gap_ms=1_000, burst=3, every_ms=2_000, jitter=0.0)


def test_the_first_message_leaves_at_once_and_the_next_in_its_chat_waits():
    pacing = SendRateLimiter(PACE)

    assert pacing.book("a", now_ms=0, chance=0) == 0
    assert pacing.book("a", now_ms=100, chance=0) == 900
    assert pacing.book("b", now_ms=100, chance=0) == 0


def test_all_chats_together_get_a_burst_and_then_keep_step():
    pacing = SendRateLimiter(PACE)

    assert [pacing.book(chat, now_ms=0, chance=0) for chat in "abcde"] == [0, 0, 0, 2_000, 4_000]


def test_a_quiet_while_gives_the_burst_back():
    pacing = SendRateLimiter(PACE)
    for chat in "abc":
        pacing.book(chat, now_ms=0, chance=0)

    assert [pacing.book(chat, now_ms=60_000, chance=0) for chat in "abcd"] == [0, 0, 0, 2_000]


def test_looking_books_nothing():
    pacing = SendRateLimiter(PACE)
    for _ in range(10):
        assert pacing.wait_ms("a", now_ms=0) == 0


def test_a_wait_gets_longer_by_chance_and_never_shorter():
    pacing = SendRateLimiter(SendRate(chat_gap_ms=1_000, jitter=0.5))
    pacing.book("a", now_ms=0, chance=0)

    assert pacing.book("a", now_ms=0, chance=0.9) == 1_450


def test_chats_of_long_ago_are_forgotten():
    pacing = SendRateLimiter(PACE)
    for number in range(MAX_CHATS * 3):
        pacing.book(str(number), now_ms=number * 10_000, chance=0)

    assert len(pacing._free_ms) <= MAX_CHATS + 2


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3_000), st.floats(0, 0.99)), max_size=60),
)
def test_no_window_has_more_than_the_burst_and_its_share(steps):
    pace = SendRate(chat_gap_ms=1_000, burst=3, every_ms=2_000, jitter=0.5)
    pacing, now_ms, sent = SendRateLimiter(pace), 0, []
    for chat, gap_ms, chance in steps:
        now_ms += gap_ms
        sent.append((now_ms + pacing.book(chat, now_ms=now_ms, chance=chance), chat))

    for chat in "abc":
        times = sorted(at for at, one in sent if one == chat)
        assert all(later - earlier >= pace.chat_gap_ms for earlier, later in itertools.pairwise(times))
    times = sorted(at for at, _ in sent)
    for first, start in enumerate(times):
        for count, end in enumerate(times[first:], start=1):
            assert count <= pace.burst + (end - start) / pace.every_ms + 1e-9
