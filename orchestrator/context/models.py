"""Define the contents of `context.json`, version 1.0: frozen documents, and their limits.

Times are ISO-8601 in UTC with a trailing Z, to the millisecond. A message's id has its turn and its author:
`t17.u` is the question of turn 17, `t17.a` its answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import MAXYEAR, UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

VERSION = "1.0"
MAX_DECISIONS, MAX_DECISION_CHARS = 20, 200
MAX_OPEN_FILES, MAX_PATH_CHARS = 20, 300
MAX_CHECKPOINTS = 20
MAX_SESSION_HISTORY = 20
MAX_REGISTERED = 400
MAX_FOLDED = 200
MAX_NAME_CHARS = 200
MAX_CONTENT_CHARS = 24_000
"""Characters of one stored message. 800 tokens of real text are shorter; a row of spaces may not be."""

Role = Literal["user", "assistant"]

FROM_SESSION = "session"
"""An entry of `folded`: the summary also contains one that the agent's session wrote itself."""
FROM_PLAN = "plan"
"""An entry of `folded`: the summary began with a plan's title and objective, in which no message is."""

_ID = re.compile(r"t(\d{1,15})\.([ua])")


def iso(at_ms: int) -> str:
    """Return epoch milliseconds in the form `2026-11-22T09:30:00.000Z`."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def ms_of(moment: str) -> int:
    """Return an ISO time as epoch milliseconds; one without an offset is in UTC. 0 for an invalid time."""
    try:
        at = datetime.fromisoformat(moment)
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return 0  # the file may have been edited; a wrong time only changes the order
    # The end of the last year may be rounded up to a time that `iso` cannot write.
    return round(at.timestamp() * 1000) if at.year < MAXYEAR else 0


def question_id(turn: int) -> str:
    """Return the id of the question of a turn: `t17.u`."""
    return f"t{turn}.u"


def answer_id(turn: int) -> str:
    """Return the id of the answer of a turn: `t17.a`."""
    return f"t{turn}.a"


def turn_of(message_id: str) -> int | None:
    """Return the number of the turn that a message id such as `t17.u` names; None if it names none."""
    match = _ID.fullmatch(message_id)
    return int(match[1]) if match else None


def _strings(value: Any) -> Any:
    """Return a list without the items that are no texts.

    Any other value is returned unchanged: pydantic refuses it afterwards.
    """
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else value


def _cut(value: Any) -> Any:
    """Return a text cut to `MAX_NAME_CHARS`.

    Any other value is returned unchanged: pydantic refuses it afterwards.
    """
    return value[:MAX_NAME_CHARS] if isinstance(value, str) else value


Strings = Annotated[tuple[str, ...], BeforeValidator(_strings)]
Name = Annotated[str, BeforeValidator(_cut)]
"""A short text such as an id. A longer one is cut, not refused, which would lose the whole file."""


class StoredModel(BaseModel):
    """The base of documents stored as JSON; unknown keys are dropped, so that they cannot pile up."""

    # Built with the first use: a start of the host needs none of these models.
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class ContextMessage(StoredModel):
    """One message of a conversation."""

    id: Name
    role: Role
    content: str
    ts: Name

    @property
    def turn(self) -> int | None:
        """The turn that the message's id names; None if it names none."""
        return turn_of(self.id)


class SeenMessages(StoredModel):
    """The messages that were registered, also those that left the window, so that each is added only once.

    The newest `MAX_REGISTERED` ids are stored; all messages of turns up to `floor` count as registered.
    """

    floor: int = 0
    ids: tuple[str, ...] = ()

    def __contains__(self, message_id: object) -> bool:
        """Return whether a message was added before: its id is stored, or its turn is not after the floor."""
        if not isinstance(message_id, str):
            return False
        turn = turn_of(message_id)
        return message_id in self.ids or (turn is not None and turn <= self.floor)

    def with_ids(self, new: Iterable[str]) -> SeenMessages:
        """Return a copy that also has the ids `new`.

        Of more than `MAX_REGISTERED` ids the oldest are dropped; the floor rises to the newest of their
        turns, so that they still count as registered.
        """
        ids = list(dict.fromkeys((*self.ids, *new)))
        dropped, newest = ids[:-MAX_REGISTERED], ids[-MAX_REGISTERED:]
        dropped_turns = [turn for message_id in dropped if (turn := turn_of(message_id)) is not None]
        floor = max([self.floor, *dropped_turns])
        return self.model_copy(update={"floor": floor, "ids": tuple(newest)})

    def up_to(self, turn: int | None) -> SeenMessages:
        """Return a copy in which all messages of turns up to `turn` count as registered; None adds none."""
        return self.model_copy(update={"floor": max(self.floor, turn or 0)})


class Memory(StoredModel):
    """The memory beside the dialogue, by ids: the titles of plans are in `workflow.json`."""

    active_plan_id: Name | None = None
    active_task_id: Name | None = None
    last_decisions: Strings = ()
    """Oldest first."""
    open_files: Strings = ()
    """Newest last."""
    working_directory: str = ""
    note: str | None = None
    """A text about the repair made at a load; it is removed when a plan or task is chosen."""


class Dialogue(StoredModel):
    """The dialogue: its newest messages in full, and a summary of the earlier ones."""

    running_summary: str = ""
    folded: Strings = ()
    """Ids of the messages in the summary, oldest first; if one is deleted, the summary is made again."""
    recent_window: tuple[ContextMessage, ...] = ()
    seen: SeenMessages = SeenMessages()


class Stats(StoredModel):
    """Figures about the whole conversation, also about messages that are no longer stored."""

    dialog_turns: int = 0
    """The number of questions."""
    total_tokens: int = 0
    """Tokens of all messages."""


class Checkpoint(StoredModel):
    """A point that the SDK's transcript has reached: a turn, and the uuid of its last message."""

    turn: int
    uuid: Name


class Sdk(StoredModel):
    """The known state of the SDK's session, against which a resumed session is checked for losses."""

    session_id: Name | None = None
    model: Name | None = None
    provider: Name | None = None
    """The model service of the last request."""
    context_tokens: int = 0
    """Tokens of the model's context window that the conversation used at the last report."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Oldest first, of this session."""
    last_active_ms: int = 0
    history: Strings = ()
    """Ids of earlier sessions, newest last."""


class Context(StoredModel):
    """The contents of `context.json`."""

    version: str = VERSION
    created_at: str = ""
    updated_at: str = ""
    revision: int = Field(default=0, ge=0)
    """A number that grows by one with every save."""
    writer: str = ""
    """The process that saved the document last: `host:pid:uuid`."""
    memory: Memory = Memory()
    conversation: Dialogue = Dialogue()
    stats: Stats = Stats()
    sdk: Sdk = Sdk()
    pending_user: Name | None = None
    """The id of the question that has no answer yet."""

    @property
    def is_empty(self) -> bool:
        """Whether the context has nothing to pass on to a new session."""
        conversation, memory = self.conversation, self.memory
        return not (
            conversation.recent_window
            or conversation.running_summary
            or memory.active_plan_id
            or memory.last_decisions
            or memory.open_files
        )


def bootstrap(now_ms: int) -> Context:
    """Return an empty valid context."""
    return Context(created_at=iso(now_ms), updated_at=iso(now_ms))
