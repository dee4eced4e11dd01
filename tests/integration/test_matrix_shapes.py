"""Events of any shape through the Matrix library and the channel: none of them costs another one.

Some are of shapes that clients are known to send; others are made from the specification's own schemas of
events (tests/schemas/matrix_events.json), valid, newer or nearly so.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("nio")

import nio

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.matrix import events, login
from orchestrator.channels.matrix import session as session_module
from orchestrator.channels.matrix.content import MESSAGE_ID_KEY
from orchestrator.channels.matrix.incoming import RoomReceiver, address_of
from orchestrator.channels.matrix.login import MatrixLogin
from orchestrator.channels.matrix.screening import original_event, parse_hostile_json, with_parsable_events
from orchestrator.channels.matrix.session import MatrixSession, RoomEvents, SyncChanges, _json_of
from orchestrator.domain.errors import ChannelDown, ChannelRefused
from orchestrator.domain.values import Attachment, MessageId
from orchestrator.groups import registration
from orchestrator.inbound.intake import Intake
from orchestrator.store.conversation import chats, messages, outbox
from orchestrator.store.database import Database
from tests.support.json_schemas import any_of, examples, load, valid
from tests.support.store_harness import a_group

ANDY = MatrixLogin(
    homeserver="http://127.0.0.1:1", user_id="@andy:x", device_id="D", token="t", owner="@jane:x"
)
ROOM = "!r:x"
ODD = [
    "",
    "\ud800",
    "x" * 300,
    "mxc://a/b",
    "$e",
    "@andy:x",
    "m.text",
    "m.image",
    "join",
    "public",
    "geo:1,2",
]
KEYS = [
    "body", "msgtype", "url", "file", "filename", "info", "m.relates_to", "m.new_content", "m.mentions",
    "formatted_body", "membership", "displayname", "name", "users", "algorithm", "ciphertext", "session_id",
    "sender_key", "device_id", "room_version", "replacement_room", "via", "rel_type", "event_id", "key",
    "m.in_reply_to", "user_ids", "m.poll", "org.matrix.msc3381.poll.start", "question", "answers", "m.text",
    "org.matrix.msc3381.poll.response", "m.selections",
    "geo_uri", "to", "redacts", "mimetype", "size", "duration", "org.matrix.msc3245.voice", "is_falling_back",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(ODD) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)
KINDS = [
    "m.room.message", "m.reaction", "m.room.redaction", "m.room.encrypted", "m.sticker", "m.room.member",
    "m.room.name", "m.room.create", "m.room.power_levels", "m.room.tombstone", "m.room.encryption",
    "m.space.child", "m.call.invite", "m.poll.start", "org.matrix.msc3381.poll.response", "com.example.order",
    "m.poll.response",
]  # fmt: skip
MSGTYPES = [
    "m.text", "m.emote", "m.notice", "m.image", "m.file", "m.audio", "m.video", "m.location",
    "m.key.verification.request", "com.example.card",
]  # fmt: skip
CONTENT = st.fixed_dictionaries(
    {}, optional={"msgtype": st.sampled_from(MSGTYPES), "body": st.text() | JSON}
).flatmap(
    lambda known: st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5).map(lambda more: more | known)
)
HEAD = {"sender": "@jane:x", "origin_server_ts": 5}
SCHEMAS = load("matrix_events")
BY_SCHEMA = st.builds(
    lambda event, is_of_jane: {**event, "sender": "@jane:x"} if is_of_jane else event,
    st.sampled_from(sorted(SCHEMAS))
    .flatmap(lambda name: any_of(valid(SCHEMAS[name], SCHEMAS)))
    .filter(lambda one: isinstance(one, dict)),
    st.booleans(),
)
"""Events of the kinds that the specification describes; half of them are of somebody in the room."""
EVENT = BY_SCHEMA | st.builds(
    lambda kind, content, changes: {**HEAD, "type": kind, "content": content, **changes},
    st.sampled_from(KINDS),
    CONTENT | JSON,
    st.dictionaries(
        st.sampled_from(
            ["sender", "origin_server_ts", "unsigned", "state_key", "type", "redacts", "event_id"]
        ),
        JSON,
        max_size=2,
    ),
)
GOOD = {
    **HEAD,
    "type": "m.room.message",
    "event_id": "$good",
    "content": {"msgtype": "m.text", "body": "good"},
}
ANY = settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))


def numbered(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give events an id each, as a homeserver does; where it is odd, it stays so."""
    return [
        {**one, "event_id": f"${number}"} if isinstance(one.get("event_id", ""), str) else one
        for number, one in enumerate(found)
    ]


def an_answer(number: int, **parts: list[Any]) -> dict[str, Any]:
    """Return the answer to a look, in which each list of events is one of `parts`."""
    lists: dict[str, Any] = {name: {"events": parts.get(name, [])} for name in ("state", "ephemeral")}
    lists["timeline"] = {"events": [*parts.get("timeline", []), GOOD], "limited": False, "prev_batch": "p"}
    return {
        "next_batch": f"s{number}",
        "rooms": {
            "join": {ROOM: lists},
            "invite": {"!i:x": {"invite_state": {"events": parts.get("invite", [])}}},
            "leave": {},
        },
        "to_device": {"events": parts.get("device", [])},
        "device_one_time_keys_count": {},
        "device_lists": {"changed": [], "left": []},
    }


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    made = login.make_client(tmp_path_factory.mktemp("matrix"), ANDY)
    yield made
    asyncio.run(made.close())


@ANY
@given(st.lists(EVENT, max_size=3), st.sampled_from(["timeline", "state", "ephemeral", "invite", "device"]))
def test_what_the_library_cannot_parse_costs_no_other_event(client, found, part):
    answer = json.loads(json.dumps(an_answer(len(client.next_batch or "") + 1, **{part: numbered(found)})))

    response = nio.SyncResponse.from_dict(with_parsable_events(answer))

    assert not isinstance(response, nio.ErrorResponse)
    asyncio.run(client.receive_response(response))
    sources = [_json_of(one) for one in response.rooms.join[ROOM].timeline.events]
    assert sources[-1] == GOOD
    client.next_batch = ""
    client.rooms.clear()


async def test_a_gap_is_fetched_past_pages_that_are_empty():
    missed = {**GOOD, "event_id": "$missed"}
    answer = an_answer(1)
    answer["rooms"]["join"][ROOM]["timeline"]["limited"] = True
    pages = iter([("p", [], "q"), ("q", [], "r"), ("r", [missed], None)])

    async def sync(**_: Any) -> Any:
        return nio.SyncResponse.from_dict(answer)

    async def room_messages(room_id: str, start: str, **_: Any) -> Any:
        asked_from, chunk, end = next(pages)
        assert (room_id, start) == (ROOM, asked_from)
        found = {"start": start, "chunk": chunk} | ({"end": end} if end else {})
        return nio.RoomMessagesResponse.from_dict(found, room_id)

    client: Any = SimpleNamespace(olm=None, sync=sync, room_messages=room_messages)
    changes = await MatrixSession(client, ANDY).sync("s0")

    assert [one["event_id"] for one in changes.rooms[0].events] == ["$missed", "$good"]


def test_what_the_library_can_parse_is_left_as_it_came():
    member = {"type": "m.room.member", "state_key": "@andy:x", "sender": "@jane:x"}
    found = an_answer(
        1, invite=[{**member, "content": {"membership": "invite"}}], state=[GOOD], timeline=[GOOD]
    )
    before = json.loads(json.dumps(found))
    assert with_parsable_events(found) == before


def test_an_event_that_the_library_cannot_parse_is_read_as_it_came():
    sticker = {**HEAD, "type": "m.sticker", "event_id": "$s"}
    response = nio.SyncResponse.from_dict(with_parsable_events(an_answer(1, timeline=[sticker])))
    assert [_json_of(one) for one in response.rooms.join[ROOM].timeline.events] == [sticker, GOOD]


@pytest.mark.parametrize("depth", [2, 100_000])
def test_an_event_of_any_depth_and_with_half_a_letter_can_be_stored(depth):
    deep: Any = "\ud800"
    for _ in range(depth):
        deep = [deep]
    found = original_event({**HEAD, "content": {"body": deep}})
    assert found == {**HEAD, "content": {} if depth > 2 else {"body": [["?"]]}}


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"null", b'{"rooms": []}', b'{"rooms": {"join": 3}}', b"{}"]
)
def test_a_page_in_place_of_an_answer_is_an_error_and_no_exception(body):
    try:
        found = with_parsable_events(json.loads(body))
    except ValueError:
        found = with_parsable_events({})
    assert isinstance(nio.SyncResponse.from_dict(found), nio.ErrorResponse)


class QuietSession:
    """A session whose homeserver knows nothing of rooms and has no files."""

    def __getattr__(self, name: str) -> Any:
        async def nothing(*_: object, **__: object) -> None:
            return None

        return nothing

    def is_group(self, room_id: str) -> bool:
        return room_id == ROOM

    def count_members(self, room_id: str) -> int:
        return len(room_id)

    def is_readable(self, room_id: str) -> bool:
        return bool(room_id)

    def room_name(self, room_id: str) -> str:
        return room_id

    def member_name(self, room_id: str, user_id: str) -> str:
        return f"{room_id} {user_id}"

    async def download(self, *_: object, **__: object) -> None:
        raise ChannelRefused("There are no files here.")


def a_host(home: Path, database: Database) -> tuple[ChannelContext, Intake]:
    """Return what a channel gets of a host, and the intake of that host."""
    clock, wakeups = SystemClock(), Wakeups()
    bus = EventBus(clock)
    context = ChannelContext(
        home=home,
        database=database,
        clock=clock,
        bus=bus,
        assistant="Andy",
        has_own_number=True,
        attachment_bytes=1_000,
        wake_outbox=wakeups.outbox.set,
    )
    return context, Intake(database, clock=clock, name="Andy", wakeups=wakeups, bus=bus)


def a_page(*found: dict[str, Any]) -> SyncChanges:
    """Return a page of the stream with these events of one room, after which the position is `s1`."""
    rooms = [RoomEvents(room_id=ROOM, events=list(found))]
    return SyncChanges(position="s1", rooms=rooms, invited_by={}, left=frozenset(), typed_in=[])


async def take_all(home: Path, database: Database, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hand events in as one page of a registered room; return the rows that there are then."""
    context, intake = a_host(home, database)
    async with database.transaction() as tx:
        await registration.register(tx, a_group("family", jid=address_of(ROOM), requires_trigger=False))
    session: Any = QuietSession()
    async with asyncio.TaskGroup() as tasks:
        receiver = RoomReceiver(context, session, ANDY, intake.receive, tasks=tasks)
        await receiver.resume()
        changes = a_page(*found, GOOD)
        await receiver.deliver(changes)
    async with database.reading() as tx:
        rows = await tx.execute_fetchall("SELECT * FROM messages")
        places = await tx.execute_fetchall("SELECT value FROM router_state WHERE key LIKE '%matrix'")
    assert [row["value"] for row in places] == [f"{receiver.position_prefix}s1"]
    return [dict(row) for row in rows]


@pytest.mark.slow
@settings(ANY, max_examples=examples(60))
@given(found=st.lists(EVENT, min_size=1, max_size=12))
def test_events_of_any_shape_have_one_outcome_each_and_the_next_message_is_taken(migrated_database, found):
    events = [original_event(one) for one in numbered(found)]

    async def taken(home: Path) -> list[dict[str, Any]]:
        database = await Database.open(home / "messages.db")
        try:
            return await take_all(home, database, events)
        finally:
            await database.close()

    with tempfile.TemporaryDirectory() as folder, structlog.testing.capture_logs() as logs:
        shutil.copy(migrated_database, Path(folder) / "messages.db")
        rows = asyncio.run(taken(Path(folder)))

    assert any(row["id"] == "$good" and row["content"] == "good" for row in rows)
    assert all(row["turn_id"] is not None or row["ignored_reason"] for row in rows)
    broken = ("matrix.message_not_read", "channel.message_not_taken")
    assert [one for one in logs if one["event"] in broken] == []


def test_a_message_that_breaks_the_reader_is_stepped_over(migrated_database, tmp_path, monkeypatch):
    read = RoomReceiver._inbound

    async def breaks(self: RoomReceiver, room_id: str, message: Any) -> Any:
        if message.event_id == "$bad":
            raise TypeError(message.event_id)
        return await read(self, room_id, message)

    monkeypatch.setattr(RoomReceiver, "_inbound", breaks)
    shutil.copy(migrated_database, tmp_path / "messages.db")

    async def taken() -> list[dict[str, Any]]:
        database = await Database.open(tmp_path / "messages.db")
        try:
            return await take_all(tmp_path, database, [{**GOOD, "event_id": "$bad"}])
        finally:
            await database.close()

    assert [row["id"] for row in asyncio.run(taken())] == ["$good"]


async def test_a_database_that_cannot_be_read_for_a_moment_loses_no_message(database, tmp_path, monkeypatch):
    context, intake = a_host(tmp_path, database)
    async with database.transaction() as tx:
        await registration.register(tx, a_group("family", jid=address_of(ROOM), requires_trigger=False))
    find = messages.find

    async def fails(*_: object) -> None:
        monkeypatch.setattr(messages, "find", find)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(messages, "find", fails)
    session: Any = QuietSession()
    async with asyncio.TaskGroup() as tasks:
        receiver = RoomReceiver(context, session, ANDY, intake.receive, tasks=tasks)
        await receiver.resume()
        with pytest.raises(sqlite3.OperationalError):
            await receiver.deliver(a_page(GOOD))
        async with database.reading() as tx:
            assert await chats.cursor(tx, "matrix") is None
        await receiver.deliver(a_page(GOOD))
    async with database.reading() as tx:
        assert await messages.find(tx, address_of(ROOM), MessageId("$good")) is not None


class SessionWithEvents(QuietSession):
    """A session whose homeserver has some events."""

    def __init__(self, *found: dict[str, Any]) -> None:
        self._events = {event["event_id"]: event for event in found}

    async def event(self, room_id: str, event_id: str) -> dict[str, Any] | None:
        assert room_id == ROOM
        return self._events.get(event_id)


async def test_a_reply_to_a_message_whose_event_is_not_known_yet_calls_andy_and_no_forged_one_does(
    database, tmp_path
):
    context, intake = a_host(tmp_path, database)
    jid = address_of(ROOM)
    async with database.transaction() as tx:
        await registration.register(tx, a_group("family", jid=jid))
        await outbox.add(tx, chat_jid=jid, text="Shall I?", dedupe_key="a", now_ms=context.clock.now_ms())
        (unsent,) = await outbox.heads(tx)
    question = {
        **GOOD,
        "content": {"msgtype": "m.text", "body": "Shall I?", MESSAGE_ID_KEY: unsent.message_id},
    }
    own, forged = (
        {**question, "event_id": "$own", "sender": ANDY.user_id},
        {**question, "event_id": "$forged"},
    )
    replies = [
        {
            **GOOD,
            "event_id": f"$to{name}",
            "content": {
                "msgtype": "m.text",
                "body": "yes",
                "m.relates_to": {"m.in_reply_to": {"event_id": f"${name}"}},
            },
        }
        for name in ("own", "forged")
    ]
    session: Any = SessionWithEvents(own, forged)
    async with asyncio.TaskGroup() as tasks:
        receiver = RoomReceiver(context, session, ANDY, intake.receive, tasks=tasks)
        await receiver.resume()
        await receiver.deliver(a_page(*replies))
    async with database.reading() as tx:
        rows = await tx.execute_fetchall("SELECT id, quoted_id, is_request FROM messages ORDER BY seq")
    assert [tuple(row) for row in rows] == [("$toown", unsent.message_id, 1), ("$toforged", "$forged", 0)]


async def test_a_file_that_arrives_amid_a_page_stores_no_position_ahead_of_its_other_messages(
    database, tmp_path
):
    context, intake = a_host(tmp_path, database)
    async with database.transaction() as tx:
        await registration.register(tx, a_group("family", jid=address_of(ROOM), requires_trigger=False))
    file = {"msgtype": "m.image", "url": "mxc://a.b/c", "body": "p"}
    picture = {**GOOD, "event_id": "$pic", "content": file}
    places: list[str | None] = []

    async def receive(message: Any, *, cursor: str | None = None) -> None:
        if message.id == "$good":
            # This message is not stored before the file of the first one has come, or never will.
            await asyncio.gather(*receiver._fetching)
            async with database.reading() as tx:
                places.append(await chats.cursor(tx, "matrix"))
        await intake.receive(message, cursor=cursor)

    session: Any = QuietSession()
    async with asyncio.TaskGroup() as tasks:
        receiver = RoomReceiver(context, session, ANDY, receive, tasks=tasks)
        await receiver.resume()
        await receiver.deliver(a_page(picture, GOOD))

    assert places == [None]
    async with database.reading() as tx:
        assert await chats.cursor(tx, "matrix") == f"{receiver.position_prefix}s1"


async def test_a_session_that_is_over_opens_no_new_connection(tmp_path):
    async with MatrixSession.open(tmp_path, ANDY) as session:
        with pytest.raises(ChannelDown):
            await session.sync(None)
    connections = session._client.client_session
    with pytest.raises(ChannelDown, match="is over"):
        await session.sync(None)
    assert session._client.client_session is connections
    assert connections.closed


async def test_a_homeserver_that_asks_for_a_moment_without_end_is_asked_for_events_less_and_less_often(
    tmp_path, monkeypatch
):
    pauses: list[float] = []
    answers = [nio.SyncError("slow", "M_LIMIT_EXCEEDED", milliseconds) for milliseconds in (-5, *[1] * 12)]

    async def note_pause(seconds: float) -> None:
        pauses.append(seconds)

    async def sync(**_: Any) -> nio.SyncError:
        if not answers:
            raise TimeoutError
        return answers.pop()

    monkeypatch.setattr(session_module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": note_pause}))
    async with MatrixSession.open(tmp_path, ANDY) as session:
        monkeypatch.setattr(session._client, "sync", sync)
        with pytest.raises(ChannelDown):
            await session.sync(None)
    assert pauses == [min(0.2 * 2**number, 300.0) for number in range(13)]


async def test_an_upload_finds_a_homeserver_down_that_does_not_even_say_whose_token_it_is(
    tmp_path, monkeypatch
):
    async def is_too_slow(call: Any, **_: Any) -> None:
        call.close()
        raise TimeoutError

    monkeypatch.setattr(session_module, "CALL_SECONDS", 0.01)
    (tmp_path / "film").write_bytes(b"film")
    film = Attachment(path=tmp_path / "film", name="film.mp4", mime="video/mp4")
    async with MatrixSession.open(tmp_path / "home", ANDY) as session:
        monkeypatch.setattr(session, "_request_for_message", is_too_slow)
        monkeypatch.setattr(session._client, "whoami", asyncio.Event().wait)
        with pytest.raises(ChannelDown, match="cannot be reached"):
            await session.upload(ROOM, film)


def an_answer_text(strange: str) -> bytes:
    """Return the JSON of a look with an event before a good one; `strange` is what its content holds."""
    event = json.dumps({**HEAD, "type": "m.room.message", "event_id": "$s", "content": {"msgtype": "THERE"}})
    whole = json.dumps(an_answer(1, timeline=["HERE"])).replace('"HERE"', event)
    return whole.replace('"THERE"', strange).encode()


@pytest.mark.parametrize(
    "strange", ["[" * 50_000 + "]" * 50_000, '{"a":' * 5_000 + "1" + "}" * 5_000, "9" * 5_000], ids=range(3)
)
def test_an_event_that_json_itself_refuses_costs_no_other_event(strange):
    body = an_answer_text(strange)
    with pytest.raises((RecursionError, ValueError)):
        json.loads(body)
    response = nio.SyncResponse.from_dict(with_parsable_events(parse_hostile_json(body)))
    ids = [_json_of(one)["event_id"] for one in response.rooms.join[ROOM].timeline.events]
    assert ids == ["$s", GOOD["event_id"]]


@pytest.mark.parametrize(
    "asked", ["null", '"soon"', "true", "2.5", "NaN", "[1]", "[" * 50_000 + "]" * 50_000]
)
def test_an_error_whose_pause_is_no_whole_number_still_asks_for_one(asked):
    body = f'{{"errcode": "M_LIMIT_EXCEEDED", "error": "slow", "retry_after_ms": {asked}}}'
    error = nio.RoomSendError.from_dict(with_parsable_events(parse_hostile_json(body.encode())), ROOM)
    error.transport_response = SimpleNamespace(status=403, headers={})
    with pytest.raises(ChannelDown) as down:
        session_module._raise_for_error(error)
    assert down.value.pause_seconds == 5.0


def test_a_pause_before_a_file_is_kept_also_if_json_refuses_the_answer():
    error = session_module._refusal(SimpleNamespace(status=429, headers={}), b"[" * 100_000)
    with pytest.raises(ChannelDown) as down:
        session_module._raise_for_error(error)
    assert down.value.pause_seconds == 5.0


PLAIN = st.none() | st.text() | st.integers()


@given(st.recursive(PLAIN, lambda one: st.lists(one) | st.dictionaries(st.text(), one)))
def test_what_json_takes_is_read_as_it_stands(found):
    assert parse_hostile_json(json.dumps(found).encode()) == found


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 1_000, b'{"a": "', b"}" * 300], ids=range(5))
def test_what_is_no_json_is_nothing(body):
    assert parse_hostile_json(body) is None


def test_a_long_text_in_quotation_marks_that_nothing_closes_is_nothing_in_one_go():
    assert parse_hostile_json(b'{"a":"' + b'\\"' * 1_000_000) is None


@pytest.mark.parametrize(
    "key",
    [
        {},
        {"key": {"k": 5}, "hashes": {"sha256": "A" * 43}, "iv": "A" * 22},
        {"key": {"k": "A" * 43}, "hashes": {"sha256": 5}, "iv": "A" * 22},
        {"key": {"k": "A" * 43}, "hashes": {"sha256": "A" * 43}, "iv": 5},
        {"key": {"k": "A" * 43}, "hashes": [], "iv": None},
        {"key": "k", "hashes": {"sha256": "\ud800"}, "iv": "A" * 22},
    ],
)
def test_a_file_whose_keys_are_no_keys_is_refused(key):
    with pytest.raises(ChannelRefused):
        session_module._decrypted_file(b"abc", key)


@pytest.mark.parametrize(
    "uri",
    [
        "mxc://../config",
        "mxc://../..",
        "mxc://%2e%2e/x",
        "mxc://a/..",
        "mxc://..%2f..%2fv3/joined_rooms",
        "mxc://a b/c",
    ],
)
def test_an_address_of_a_file_leads_nowhere_else(uri):
    content = {"msgtype": "m.file", "body": "x", "url": uri}
    read = events.read_event({**HEAD, "type": "m.room.message", "content": content})
    assert getattr(read, "file", None) is None


@pytest.mark.parametrize(
    ("status", "answer", "sentence"),
    [
        ("200 OK", "{}", "@andy:x is logged out."),
        ("401 Unauthorized", '{"errcode": "M_UNKNOWN_TOKEN", "error": "gone"}', "@andy:x is logged out."),
        (
            "401 Unauthorized",
            '{"errcode": "M_UNKNOWN_TOKEN", "error": "expired", "soft_logout": true}',
            "refused it (expired): end the session 'Andy' there.",
        ),
        (
            "403 Forbidden",
            '{"errcode": "M_FORBIDDEN", "error": "not\\nyours"}',
            "refused it (not yours): end the session 'Andy' there.",
        ),
        ("502 Bad Gateway", "<html>", "answered 502: end the session 'Andy' there."),
    ],
)
async def test_a_logout_says_what_the_homeserver_did(
    tmp_path: Path, status: str, answer: str, sentence: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(answer)}\r\n\r\n{answer}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        login._write_login(tmp_path, ANDY.model_copy(update={"homeserver": address}))
        assert (await login.log_out(tmp_path)).endswith(sentence)
    assert login.read_login(tmp_path) is None


@pytest.mark.parametrize("stored", [ANDY.model_dump_json(), "{"])
async def test_a_logout_names_the_keys_that_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    keys = tmp_path / login.CRYPTO / "@andy:x_D.db"
    keys.parent.mkdir(parents=True)
    keys.write_bytes(b"keys")
    (tmp_path / login.LOGIN).write_text(stored)
    delete = os.unlink

    def refuse(path: str | Path, *, dir_fd: int | None = None) -> None:
        if Path(path).name == keys.name:
            raise PermissionError("Operation not permitted")
        delete(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    text = await login.log_out(tmp_path)
    assert not (tmp_path / login.LOGIN).exists()
    assert text.endswith(f"The keys of its encrypted rooms cannot be deleted: delete {keys.parent} yourself.")


async def test_a_comparison_of_keys_that_cannot_be_declined_in_time_is_logged_with_the_reason(monkeypatch):
    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(session_module, "CALL_SECONDS", 0.01)
    client: Any = SimpleNamespace(olm=None, rooms={ROOM: None}, room_send=hang, sharing_session={})
    with structlog.testing.capture_logs() as logs:
        await MatrixSession(client, ANDY).decline_verification(ROOM, "$asked")

    assert [(one["event"], one["reason"]) for one in logs] == [("matrix.verification", "TimeoutError")]
