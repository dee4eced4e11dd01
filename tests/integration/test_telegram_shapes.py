"""Updates of any shape through the Telegram library and the channel: none of them costs another one.

The strategies are made from the signatures of python-telegram-bot's own classes, which follow the Bot API
field by field, with its types, and say which are required (LGPL-3.0; the version is that of the lock file).
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import json
import re
import shutil
import tempfile
import types
import typing
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("telegram")

import telegram

from orchestrator.base.clock import SystemClock
from orchestrator.base.event_bus import EventBus
from orchestrator.base.wakeups import Wakeups
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.telegram.incoming import UpdateReceiver
from orchestrator.channels.telegram.login import TelegramLogin
from orchestrator.channels.telegram.message_ids import MessageIds
from orchestrator.domain.polls import Poll
from orchestrator.domain.values import ChatJid, Folder, MessageId
from orchestrator.groups import registration
from orchestrator.inbound.intake import Intake
from orchestrator.store.conversation import chats, polls
from orchestrator.store.database import Database
from tests.support.json_schemas import examples
from tests.support.store_harness import a_group

LOGIN = TelegramLogin(token="1:x", bot_id=1, username="andy_bot", owner=77)
CHAT = -100200
NAMES = {"from_user": "from"}
"""Fields that the library calls by other names than the Bot API."""
DEPTH = 2
"""Levels at which optional fields are drawn; below them objects have their required ones alone."""
TEXT = st.text(max_size=20) | st.sampled_from(
    ["", "\ud800", "@andy_bot", "/clear@andy_bot", "private", "emoji"]
)
NUMBER = st.integers(-(2**53), 2**53) | st.sampled_from([0, 1, CHAT, 77])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=5,
)


def of(annotation: Any, depth: int) -> st.SearchStrategy[Any]:
    """Return a strategy for the JSON of a parameter's type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of(one, depth) for one in arguments if one is not type(None)])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if inspect.isclass(origin) and arguments and issubclass(origin, Sequence):
        return st.lists(of(arguments[0], depth), max_size=2)
    if isinstance(annotation, (str, typing.ForwardRef)):
        name = annotation if isinstance(annotation, str) else annotation.__forward_arg__
        found = next((one for one in re.findall(r"\w+", name) if hasattr(telegram, one)), "")
        annotation = getattr(telegram, found, None)
    if inspect.isclass(annotation) and issubclass(annotation, telegram.TelegramObject):
        return objects(annotation, depth)
    simple = {str: TEXT, bool: st.booleans(), float: st.floats(-180, 180), int: NUMBER}
    times = {dt.datetime: st.integers(0, 2**33) | NUMBER, dt.timedelta: st.integers(0, 10**6)}
    return {**simple, **times}.get(annotation, JUNK)


@cache
def objects(kind: type, depth: int) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for the JSON of an object of the Bot API."""
    required, optional = {}, {}
    for name, one in inspect.signature(kind.__init__).parameters.items():
        if name in ("self", "api_kwargs") or one.kind is one.VAR_KEYWORD:
            continue
        is_required = one.default is one.empty
        if is_required or depth > 0:
            fields = required if is_required else optional
            fields[NAMES.get(name, name)] = st.deferred(
                lambda annotation=one.annotation: of(annotation, max(depth - 1, 0))
            )
    return st.fixed_dictionaries(required, optional=optional)


HEAD = st.fixed_dictionaries({
    "message_id": st.integers(1, 10**6),
    "date": st.integers(0, 2**33),
    "chat": st.just({"id": CHAT, "type": "supergroup", "title": "Family"}),
    "from": st.sampled_from([77, 5]).map(lambda one: {"id": one, "is_bot": False, "first_name": "Jane"}),
})  # fmt: skip


def _parts() -> list[tuple[str, Any]]:
    """Return the optional parts of a message with their types."""
    without = {"self", "api_kwargs", "from_user", "reply_to_message"}
    found = inspect.signature(telegram.Message.__init__).parameters
    return [
        (name, one.annotation) for name, one in found.items() if name not in without and one.default is None
    ]


PARTS = st.lists(
    st.sampled_from(_parts()).flatmap(
        lambda part: of(part[1], DEPTH).map(lambda value, name=part[0]: (name, value))
    ),
    max_size=3,
).map(dict)
"""A few of the parts that a message may have, each as the library declares it."""
NEWER = st.dictionaries(TEXT, JUNK, max_size=1)
"""Fields that no version of the library knows."""
MESSAGE = st.builds(lambda head, parts, newer: {**head, **parts, **newer}, HEAD, PARTS, NEWER)
CHANGES = st.dictionaries(
    st.sampled_from(["message_id", "date", "chat", "from", "text", "entities"]), JUNK, max_size=1
)
NEAR_MISS = st.builds(lambda message, changes: {**message, **changes}, MESSAGE, CHANGES)
ANSWER = st.fixed_dictionaries(
    {
        "poll_id": st.sampled_from(["1", "2"]) | JUNK,
        "option_ids": st.lists(st.integers(-1, 3) | JUNK, max_size=3),
    },
    optional={
        "user": st.just({"id": 77, "is_bot": False, "first_name": "Jane"}) | JUNK,
        "voter_chat": st.just({"id": CHAT, "type": "supergroup", "title": "Family"}) | JUNK,
    },
)
"""Votes in a poll that there is, in one that there is not, and what only looks like one."""
UPDATE = st.one_of(
    st.sampled_from(["message", "edited_message"]).flatmap(
        lambda kind: (MESSAGE | NEAR_MISS).map(lambda message: {kind: message})
    ),
    objects(telegram.MessageReactionUpdated, 1).map(lambda one: {"message_reaction": one}),
    objects(telegram.PollAnswer, 1).map(lambda one: {"poll_answer": one}),
    ANSWER.map(lambda one: {"poll_answer": one}),
    st.dictionaries(
        st.sampled_from(["message", "poll", "poll_answer", "story_stack", "chat_member"]), JUNK, max_size=2
    ),
)
GOOD = {"message": {"message_id": 10**7, "date": 1_780_000_000, "text": "good",
                    "chat": {"id": CHAT, "type": "supergroup", "title": "Family"},
                    "from": {"id": 77, "is_bot": False, "first_name": "Jane"}}}  # fmt: skip


class NoFiles:
    """A bot whose files cannot be fetched."""

    defaults = None

    async def get_file(self, *_: object, **__: object) -> None:
        raise telegram.error.TelegramError("There are no files here.")


async def take_all(home: Path, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hand updates in, each as a page of its own, then a good one; return the rows that there are then."""
    database = await Database.open(home / "messages.db")
    try:
        clock, wakeups = SystemClock(), Wakeups()
        bus = EventBus(clock)
        intake = Intake(database, clock=clock, name="Andy", wakeups=wakeups, bus=bus)
        context = ChannelContext(
            home=home, database=database, clock=clock, bus=bus, assistant="Andy", has_own_number=True,
            attachment_bytes=1_000, wake_outbox=wakeups.outbox.set,
        )  # fmt: skip
        async with database.transaction() as tx:
            await registration.register(tx, a_group("main", is_main=True))
            await registration.register(
                tx, a_group("family", jid=ChatJid(f"tg:{CHAT}"), requires_trigger=False)
            )
            poll = Poll(
                question="Tea?", options=("Yes", "No"), folder=Folder("family"),
                chat_jid=ChatJid(f"tg:{CHAT}"), message_id=MessageId("P"),
            )  # fmt: skip
            await polls.add(tx, poll)
            await polls.note_ref(tx, MessageId("P"), "telegram 1")
        bot: Any = NoFiles()
        async with asyncio.TaskGroup() as tasks:
            receiver = UpdateReceiver(context, bot, LOGIN, intake.receive, ids=MessageIds(), tasks=tasks)
            for number, update in enumerate([*found, GOOD], start=1):
                assert await receiver.deliver_page([{**update, "update_id": number}]) == number + 1
                async with database.reading() as tx:
                    assert await chats.cursor(tx, "telegram") == f"1 {number + 1}"
        async with database.reading() as tx:
            return [dict(row) for row in await tx.execute_fetchall("SELECT * FROM messages")]
    finally:
        await database.close()


def taken(migrated_database: Path, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(migrated_database, Path(folder) / "messages.db")
        return asyncio.run(take_all(Path(folder), found))


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples(60))
@given(found=st.lists(UPDATE, min_size=1, max_size=8))
def test_updates_of_any_shape_have_one_outcome_each_and_the_next_message_is_taken(migrated_database, found):
    updates = json.loads(json.dumps(found))

    with structlog.testing.capture_logs() as logs:
        rows = taken(migrated_database, updates)

    assert any(row["id"] == str(10**7) and row["content"] == "good" for row in rows) or _moved_away(updates)
    assert all(row["turn_id"] is not None or row["ignored_reason"] for row in rows)
    assert [one for one in logs if one["event"] == "channel.message_not_taken"] == []


@pytest.mark.parametrize("field", ["migrate_to_chat_id", "migrate_from_chat_id"])
def test_a_group_that_moves_to_its_own_address_stays_there(migrated_database, field):
    """The generator above made this one: the group lost its address, and nothing of it was heard any more."""
    rows = taken(
        migrated_database, [{"message": {**GOOD["message"], "message_id": 1, "text": None, field: CHAT}}]
    )

    assert [row["content"] for row in rows] == ["good"]


def test_an_id_that_is_no_text_for_a_database_costs_no_other_message(migrated_database):
    """The generator made this one, too: the connection ended at it, and again at each try."""
    half = {**GOOD["message"], "message_id": "\ud800", "text": "hi"}

    rows = taken(
        migrated_database, [{"message": half}, {"message": {**half, "migrate_to_chat_id": "\ud800"}}]
    )

    assert [row["id"] for row in rows if row["content"] == "hi"] == ["?"]


def _moved_away(found: list[dict[str, Any]]) -> bool:
    """Return whether one of the updates says that the chat has another address now."""
    messages = [one.get("message") or one.get("edited_message") for one in found]
    return any(isinstance(one, dict) and one.get("migrate_to_chat_id") for one in messages)


DOCUMENT = {"file_id": "f", "file_unique_id": "u"}
OF_OTHER_TYPES: list[dict[str, Any]] = [
    {"text": None, "document": {**DOCUMENT, "file_size": "5"}},
    {"text": None, "document": {**DOCUMENT, "file_size": [5]}},
    {"text": None, "document": {**DOCUMENT, "file_size": -(10**30)}},
    {"text": None, "photo": [{**DOCUMENT, "width": 1, "height": 1, "file_size": "9"}]},
    {"text": None, "migrate_to_chat_id": [1]},
    {"text": None, "migrate_to_chat_id": 10**400},
    {"from": {"id": 77, "is_bot": False, "first_name": ["J"]}},
    {"chat": {"id": CHAT, "type": "supergroup", "title": ["x"]}},
]


@pytest.mark.parametrize("fields", OF_OTHER_TYPES, ids=range(len(OF_OTHER_TYPES)))
def test_a_value_of_another_type_costs_no_other_message(migrated_database, fields):
    strange = {**GOOD["message"], "message_id": 1, **fields}

    rows = taken(migrated_database, [{"message": strange}])

    assert [row["content"] for row in rows][-1] == "good"
    assert all(row["turn_id"] is not None or row["ignored_reason"] for row in rows)
