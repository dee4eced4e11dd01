"""How fast messages leave for WhatsApp: no chat and no hour has more of them than people write."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.channels.whatsapp.send_rate import MAX_CHATS, SendRate, SendRateLimiter
from orchestrator.domain.errors import ChannelDown
from tests.doubles.clock import FakeClock

RATE = SendRate(chat_gap_ms=1_000, burst=3, every_ms=2_000, jitter=0.0)


def a_limiter(clock: FakeClock, rate: SendRate = RATE, *, chance: float = 0.0) -> SendRateLimiter:
    return SendRateLimiter(rate, clock=clock, chance=lambda: chance)


def test_the_first_message_leaves_at_once_and_the_next_in_its_chat_waits():
    clock = FakeClock()
    limiter = a_limiter(clock)

    assert limiter.book("a") == 0
    clock.pass_ms(100)
    assert limiter.book("a") == 900
    assert limiter.book("b") == 0


def test_all_chats_together_get_a_burst_and_then_keep_step():
    limiter = a_limiter(FakeClock())

    assert [limiter.book(chat) for chat in "abcde"] == [0, 0, 0, 2_000, 4_000]


def test_a_quiet_while_gives_the_burst_back():
    clock = FakeClock()
    limiter = a_limiter(clock)
    for chat in "abc":
        limiter.book(chat)
    clock.pass_ms(60_000)

    assert [limiter.book(chat) for chat in "abcd"] == [0, 0, 0, 2_000]


def test_to_ask_for_the_wait_takes_no_place():
    limiter = a_limiter(FakeClock())
    for _ in range(10):
        assert limiter.wait_ms("a") == 0


def test_a_wait_gets_longer_by_chance_and_never_shorter():
    limiter = a_limiter(FakeClock(), SendRate(chat_gap_ms=1_000, jitter=0.5), chance=0.9)
    limiter.book("a")

    assert limiter.book("a") == 1_450


def test_a_message_that_chance_holds_back_does_not_leave_together_with_the_next():
    chances = iter([0.0, 0.99, 0.0])
    rate = SendRate(chat_gap_ms=0, burst=1, every_ms=1_000, jitter=0.5)
    limiter = SendRateLimiter(rate, clock=FakeClock(), chance=lambda: next(chances))

    times = [limiter.book(chat) for chat in "abcd"]

    assert all(later - earlier >= 1_000 for earlier, later in itertools.pairwise(times)), times


def test_reactions_take_what_is_above_half_of_the_burst():
    clock = FakeClock()
    limiter = a_limiter(clock, SendRate(burst=4, every_ms=2_000))

    assert [limiter.take_spare() for _ in range(4)] == [True, True, True, False]
    clock.pass_ms(2_000)
    assert limiter.take_spare()


async def test_a_message_whose_turn_is_far_away_is_refused_and_takes_no_place():
    limiter = a_limiter(FakeClock(), SendRate(burst=1, every_ms=60_000))
    limiter.book("a")

    for _ in range(2):
        with pytest.raises(ChannelDown, match="bans"):
            await limiter.wait_for_turn("b")
    assert limiter.wait_ms("b") == 60_000


def test_chats_of_long_ago_are_forgotten():
    clock = FakeClock()
    limiter = a_limiter(clock)
    for number in range(MAX_CHATS * 3):
        limiter.book(str(number))
        clock.pass_ms(10_000)

    assert len(limiter._next_in_chat_ms) <= MAX_CHATS + 2


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3_000), st.floats(0, 0.99)), max_size=60),
)
def test_no_window_has_more_than_the_burst_and_its_share(steps):
    rate = SendRate(chat_gap_ms=1_000, burst=3, every_ms=2_000, jitter=0.5)
    clock, sent = FakeClock(), []
    jitter = 0.0
    limiter = SendRateLimiter(rate, clock=clock, chance=lambda: jitter)
    for chat, gap_ms, chance in steps:
        jitter = chance
        clock.pass_ms(gap_ms)
        sent.append((clock.steady_ms() + limiter.book(chat), chat))

    for chat in "abc":
        times = sorted(at for at, one in sent if one == chat)
        assert all(later - earlier >= rate.chat_gap_ms for earlier, later in itertools.pairwise(times))
    times = sorted(at for at, _ in sent)
    for first, start in enumerate(times):
        for count, end in enumerate(times[first:], start=1):
            assert count <= rate.burst + (end - start) / rate.every_ms + 1e-9
