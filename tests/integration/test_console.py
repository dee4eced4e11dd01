"""The console's sessions, forms and streams, on a real database."""

from __future__ import annotations

import json
import re
from unittest.mock import AsyncMock

import pytest

from orchestrator.base.event_bus import RING
from orchestrator.store import audit
from orchestrator.store.access import web_sessions
from orchestrator.web.console.app import find_pages
from orchestrator.web.console.form_tokens import (
    ChangedSince,
    FormCutOff,
    FormForged,
    FormGuard,
    FormSentTwice,
    SentForm,
)
from orchestrator.web.console.live import LiveStreams
from orchestrator.web.console.sessions import CODE_MS, SessionService, SignedIn, SignInRefused, TooManyTries
from tests.support.read_only import read_only
from tests.support.store_harness import StoreHarness

TOKEN = "the-token"
MINUTE_MS = 60_000


@pytest.fixture
def sessions(store_harness: StoreHarness) -> SessionService:
    return SessionService(
        store_harness.database, store_harness.database, token=TOKEN, clock=store_harness.clock
    )


# Signing in


async def test_a_code_works_once_and_for_half_a_minute(sessions, store_harness):
    used, late = sessions.make_code(), sessions.make_code()
    signed_in = await sessions.sign_in(used, agent="Firefox")
    found = await sessions.find(signed_in.cookie, agent="Firefox")
    assert found is not None
    assert found.session.browser == "Firefox"
    with pytest.raises(SignInRefused):
        await sessions.sign_in(used, agent="")
    store_harness.clock.pass_ms(CODE_MS)
    with pytest.raises(SignInRefused):
        await sessions.sign_in(late, agent="")


async def test_a_code_is_valid_no_longer_for_a_clock_that_was_set_back(sessions, store_harness):
    code = sessions.make_code()
    store_harness.clock.pass_ms(CODE_MS)
    store_harness.clock.wall_ms -= 60 * MINUTE_MS
    with pytest.raises(SignInRefused):
        await sessions.sign_in(code, agent="")


async def test_a_wrong_guess_burns_no_code(sessions):
    code = sessions.make_code()
    name = code.partition(".")[0]
    with pytest.raises(SignInRefused):
        await sessions.sign_in(f"{name}.guess", agent="")
    await sessions.sign_in(code, agent="")


async def test_tries_are_limited_and_the_limit_lets_codes_through(sessions, store_harness):
    for _ in range(10):
        with pytest.raises(SignInRefused):
            await sessions.sign_in("wrong", agent="")
    with pytest.raises(TooManyTries):
        await sessions.sign_in(TOKEN, agent="")
    await sessions.sign_in(sessions.make_code(), agent="")
    store_harness.clock.pass_ms(MINUTE_MS)
    await sessions.sign_in(TOKEN, agent="")


async def test_the_store_holds_no_secret_and_the_audit_no_code(sessions, store_harness):
    code = sessions.make_code()
    signed_in = await sessions.sign_in(code, agent="x")
    async with store_harness.database.reading() as tx:
        stored = await web_sessions.find(tx, signed_in.session.id)
        rows = await audit.newest(tx, limit=10)
    assert signed_in.secret not in repr(stored)
    kept = [row for row in rows if row["kind"] == "web.signed_in"]
    assert kept[0]["detail"] == {"by": "code", "session": signed_in.session.id}


async def test_pages_can_be_read_while_their_use_cannot_be_recorded(sessions, store_harness):
    signed_in = await sessions.sign_in(TOKEN, agent="Firefox/")
    store_harness.clock.pass_ms(2 * MINUTE_MS)
    async with read_only(store_harness.database):
        assert await sessions.find(signed_in.cookie, agent="Firefox/") is not None
        assert await sessions.find(signed_in.cookie, agent="Chrome/") is not None
    found = await sessions.find(signed_in.cookie, agent="Chrome/")
    assert found is not None
    async with store_harness.database.reading() as tx:
        stored = await web_sessions.find(tx, signed_in.session.id)
    assert stored is not None
    assert stored.browser == "Firefox, also Chrome"


@pytest.mark.parametrize("cookie", ["", "x", ".", "a.b", "{id}.wrong", "{id}."])
async def test_a_made_up_cookie_is_nobody(sessions, cookie):
    signed_in = await sessions.sign_in(TOKEN, agent="")
    assert await sessions.find(cookie.format(id=signed_in.session.id), agent="") is None


async def test_an_unused_session_ends_after_a_week_and_a_used_one_after_a_month(sessions, store_harness):
    idle = await sessions.sign_in(TOKEN, agent="idle")
    used = await sessions.sign_in(TOKEN, agent="used")
    for _ in range(6):
        store_harness.clock.pass_ms(5 * web_sessions.DAY_MS)
        assert await sessions.find(used.cookie, agent="used") is not None
    assert await sessions.find(idle.cookie, agent="idle") is None
    store_harness.clock.pass_ms(web_sessions.DAY_MS)
    assert await sessions.find(used.cookie, agent="used") is None


# Forms


async def send(guard: FormGuard, signed_in: SignedIn, field: str, *, is_done: bool = True) -> None:
    async with guard.carrying_out(signed_in, field) as taken:
        taken.is_done = is_done


async def test_a_form_is_taken_once_by_the_session_it_was_made_for_also_after_a_restart(
    sessions, store_harness
):
    mine = await sessions.sign_in(TOKEN, agent="mine")
    other = await sessions.sign_in(TOKEN, agent="other")
    guard = FormGuard(store_harness.database, clock=store_harness.clock)
    field = guard.make(mine.secret)
    with pytest.raises(FormForged):
        await send(guard, other, field)
    await send(guard, mine, field, is_done=False)
    with pytest.raises(ZeroDivisionError):
        async with guard.carrying_out(mine, field):
            raise ZeroDivisionError
    await send(guard, mine, field)

    restarted = FormGuard(store_harness.database, clock=store_harness.clock)
    for one in (guard, restarted):
        with pytest.raises(FormSentTwice):
            await send(one, mine, field)
    await sessions.sign_out(mine)
    assert await store_harness.rows("SELECT * FROM used_forms") == []


async def test_a_form_that_was_cut_off_by_a_restart_is_not_called_done(sessions, store_harness):
    mine = await sessions.sign_in(TOKEN, agent="mine")
    guard = FormGuard(store_harness.database, clock=store_harness.clock)
    field = guard.make(mine.secret)
    async with store_harness.database.transaction() as tx:
        number = field.partition(".")[0]
        await web_sessions.use_form(tx, mine.session.id, number, now_ms=1)

    with pytest.raises(FormCutOff):
        await send(guard, mine, field)


@pytest.mark.parametrize("field", ["", ".", "x", "x.y", "ü.ü"])
async def test_no_form_is_a_forged_one(sessions, store_harness, field):
    guard = FormGuard(store_harness.database, clock=store_harness.clock)
    with pytest.raises(FormForged):
        await send(guard, await sessions.sign_in(TOKEN, agent="mine"), field)


def test_what_changed_since_the_page_was_opened_is_told_with_both_states():
    form = SentForm({"_seen": [json.dumps({"trigger": "@Andy", "egress": ""})]})
    form.check_unchanged({"trigger": "@Andy", "egress": None})
    with pytest.raises(ChangedSince) as raised:
        form.check_unchanged({"trigger": "@Bob", "egress": None})
    assert (raised.value.before["trigger"], raised.value.now["trigger"]) == ("@Andy", "@Bob")
    assert raised.value.shown == [("trigger", "@Andy", "@Bob"), ("egress", "", "")]
    for seen in ("", "x", "[]", "1"):
        with pytest.raises(FormForged):
            SentForm({"_seen": [seen]}).check_unchanged({})


def test_what_a_program_alone_compares_is_not_shown_as_changed():
    form = SentForm({"_seen": [json.dumps({"_digest": "a"})]})
    with pytest.raises(ChangedSince) as raised:
        form.check_unchanged({"_digest": "b"})
    assert raised.value.shown == []


def test_a_body_that_is_no_form_is_refused():
    with pytest.raises(FormForged):
        SentForm.parse(b"\xff\xfe")
    with pytest.raises(FormForged):
        SentForm.parse(b"&".join(b"a=1" for _ in range(1001)))


# Streams


async def welcome() -> bool:
    return True


def event_of(sent: str) -> tuple[str, str]:
    """Return the name and the data of one event."""
    kind, _, data = sent.rstrip("\n").split("\n")
    return kind.removeprefix("event: "), data.removeprefix("data: ")


async def first(streams: LiveStreams, after: str) -> list[tuple[str, str]]:
    """Return the events that a browser which comes back is sent at once."""
    told = []
    events = streams.events(after, is_signed_in=welcome)
    async for event in events:
        told.append(event_of(event))
        if told[-1][0] == "live":
            break
    await events.aclose()
    return told[:-1]


async def test_a_browser_that_comes_back_hears_what_happened_meanwhile_and_nothing_else(store_harness):
    streams = LiveStreams(store_harness.bus, start="s", kinds=("turn.*", "host.*"))
    store_harness.bus.publish("turn.started", group="family")
    mark = streams.now
    assert await first(streams, mark) == []
    store_harness.bus.publish("turn.answered", group="work")
    store_harness.bus.publish("turn.answered", group="work")
    store_harness.bus.publish("host.started")
    store_harness.bus.publish("group.configured", group="family")
    assert await first(streams, mark) == [("change", '[["host.started",null],["turn.answered","work"]]')]


@pytest.mark.parametrize("after", ["", "other-1", "s-", "s-x", "-1", "s-99999999999999999999"])
async def test_a_browser_of_another_start_is_told_to_make_everything_anew(store_harness, after):
    store_harness.bus.publish("host.started")
    assert await first(LiveStreams(store_harness.bus, start="s"), after) == [("all", "")]


async def test_a_browser_that_missed_more_than_is_kept_is_told_to_make_everything_anew(store_harness):
    streams = LiveStreams(store_harness.bus, start="s")
    store_harness.bus.publish("turn.started")
    mark = streams.now
    for _ in range(RING + 1):
        store_harness.bus.publish("group.configured")
    assert await first(streams, mark) == [("all", "")]


async def test_a_stream_ends_when_its_session_is_over(store_harness, monkeypatch):
    monkeypatch.setattr("orchestrator.web.console.live.PING_SECONDS", 0.01)
    streams = LiveStreams(store_harness.bus, start="s")

    async def gone() -> bool:
        return False

    told = [event.partition("\n")[0] async for event in streams.events(streams.now, is_signed_in=gone)]
    assert told == ["event: live", ": ping", "event: live-over"]


async def test_a_stream_ends_when_its_session_is_over_though_there_is_always_a_change(
    store_harness, monkeypatch
):
    monkeypatch.setattr("orchestrator.web.console.live.PING_SECONDS", 0.0)
    monkeypatch.setattr(LiveStreams, "_next_changes", AsyncMock(return_value={("turn.started", "family")}))
    streams = LiveStreams(store_harness.bus, start="s")

    async def gone() -> bool:
        return False

    told = [event.partition("\n")[0] async for event in streams.events(streams.now, is_signed_in=gone)]
    assert told == ["event: live", "event: change", "event: live-over"]


async def test_the_id_of_a_change_covers_no_event_that_it_does_not_tell(store_harness):
    """A browser that is cut off after a change asks from its id on: what is not in it comes then."""
    streams = LiveStreams(store_harness.bus, start="s")
    events = streams.events(streams.now, is_signed_in=welcome)
    assert event_of(await anext(events)) == ("live", "")
    store_harness.bus.publish("turn.started", group="family")
    change = await anext(events)
    assert event_of(change) == ("change", '[["turn.started","family"]]')
    store_harness.bus.publish("turn.answered", group="family")
    await events.aclose()
    after = change.split("\n")[1].removeprefix("id: ")
    assert await first(streams, after) == [("change", '[["turn.answered","family"]]')]


def test_pages_name_events_in_a_form_that_browsers_read():
    kinds = {kind for page in find_pages() for part in page.live.values() for kind in part}
    assert [kind for kind in kinds if not re.fullmatch(r"[a-z_.:-]+(\.\*)?", kind)] == []
