"""What a request asks for. Plain values: nothing here has been done yet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from agent_runner.agents.offline.dates import Trouble
from agent_runner.agents.offline.when import When


class Language(StrEnum):
    ENGLISH = "en"
    KOREAN = "ko"


TODO = "todo"
"""The list that is meant when none is named."""


class Plain(Enum):
    """Wishes that need no more words."""

    GREET = auto()
    THANK = auto()
    HELP = auto()
    TELL_TIME = auto()
    TELL_DAY = auto()
    TELL_TODAY = auto()
    """Today's reminders and the open to-dos."""
    SHOW_REMINDERS = auto()
    SHOW_LISTS = auto()
    SHOW_GROUPS = auto()
    SHOW_OPEN = auto()
    """The dashboard's tasks and questions, and the open to-dos."""
    RECALL = auto()
    """What this conversation was about."""
    NEEDS_MODEL = auto()
    """Only a model could answer it."""


@dataclass(frozen=True, slots=True)
class Echo:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remind:
    """`is_for_all`: it names nobody, because everybody is meant."""

    what: str
    when: When
    is_for_all: bool = False


@dataclass(frozen=True, slots=True)
class RemindUnclear:
    """It asks for a reminder, but not in words that can be taken."""

    trouble: Trouble


@dataclass(frozen=True, slots=True)
class CancelReminder:
    reminder_id: int


@dataclass(frozen=True, slots=True)
class AddItems:
    items: tuple[str, ...]
    list_name: str = TODO


class ListAct(Enum):
    SHOW = auto()
    FINISH = auto()
    REMOVE = auto()
    CLEAR_DONE = auto()


@dataclass(frozen=True, slots=True)
class OnList:
    """Something with a list that is there. `item` is a number or a text, empty where none is needed."""

    act: ListAct
    list_name: str = TODO
    item: str = ""


@dataclass(frozen=True, slots=True)
class AddTask:
    """Something for the dashboard; empty where it was not said what. `deadline` as it was said, or empty."""

    title: str
    deadline: str = ""


@dataclass(frozen=True, slots=True)
class DropTask:
    """`which` as of `SetProgress`: it is not to be done any more."""

    which: str


@dataclass(frozen=True, slots=True)
class SetProgress:
    """`which` is the number or a part of the title of a task of the dashboard."""

    which: str
    pct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddGroup:
    jid: str
    folder: str
    name: str


@dataclass(frozen=True, slots=True)
class DropGroup:
    folder: str


@dataclass(frozen=True, slots=True)
class Wake:
    """`after` as it was said: the host reads it."""

    after: str


@dataclass(frozen=True, slots=True)
class NoteToSelf:
    """Something to be said at the beginning of the next turn."""

    text: str


@dataclass(frozen=True, slots=True)
class SendFile:
    path: str


Wish = (
    Plain
    | Echo
    | Remind
    | RemindUnclear
    | CancelReminder
    | AddItems
    | OnList
    | AddTask
    | DropTask
    | SetProgress
    | AddGroup
    | DropGroup
    | NoteToSelf
    | SendFile
    | Wake
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is wished, and the language to answer in."""

    wish: Wish
    language: Language
