"""The conversation so far: what was asked, what an answer to it means, and which list was shown last.

It is kept in one file of the group's folder, so that an answer is understood in the next container too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agent_runner.agents.offline.checklists import ListFault, read_plain
from agent_runner.agents.offline.intents import PATTERNS, TODO, ParsedRequest, say
from agent_runner.agents.offline.reading import one
from agent_runner.agents.offline.wording import reminders
from agent_runner.wire import times
from agent_runner.wire.files import write_whole
from agent_runner.wire.times import Language, Reason, TimeRefusal

FILE = ".andy-talk.json"
MAX_QUESTIONS = 10
MAX_AGE_SECONDS = 24 * 3600
"""An older question is asked no more: nobody remembers what a "yes" would answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEntry:
    """One entry of a list that was shown to the chat, so that its number can be answered with."""

    kind: str
    """`task`, `item` of a list, `reminder` or `repeat`."""
    label: str
    id: str = ""
    list: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One of several things that may be meant."""

    label: str
    wish: ParsedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question that was asked: the request that waits for it, and which slot the answer fills."""

    wish: ParsedRequest
    slot: str
    """`when`, `what`, `list`, `which` of the options, or `sure`."""
    text: str
    sender: str = ""
    at: float
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationState:
    """What the agent remembers of a conversation between two turns."""

    questions: tuple[OpenQuestion, ...] = ()
    """The one that is asked first; the others wait for it."""
    shown: Mapping[str, ShownEntry] = field(default_factory=dict)
    list: str = ""
    """The list that was spoken of last."""
    task: str = ""
    """The id of the task that was spoken of last."""
    told_day: str = ""
    """When it was last told how more would be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    turn: int
    before: ConversationState
    after: ConversationState


_ADAPTER: TypeAdapter[_Kept] | None = None


def _adapter() -> TypeAdapter[_Kept]:
    global _ADAPTER  # noqa: PLW0603  # building it takes a while, and a start pays only for what it needs
    if _ADAPTER is None:
        _ADAPTER = TypeAdapter(_Kept)
    return _ADAPTER


class Conversation:
    """Reads and writes what is known. A turn that is tried again begins where it began before."""

    def __init__(self, group: Path) -> None:
        self._path = group / FILE
        self._kept: _Kept | None = None

    def before(self, turn: int) -> ConversationState:
        """Return what was known when `turn` began. Blocks; a file that cannot be read is none."""
        if self._kept is None:
            try:
                self._kept = _adapter().validate_json(read_plain(self._path))
            except (OSError, ListFault, UnicodeDecodeError, ValidationError):
                return ConversationState()
        return self._kept.before if self._kept.turn == turn else self._kept.after

    def keep(self, turn: int, before: ConversationState, after: ConversationState) -> None:
        """Note what is known after `turn`. Blocks; a disk that refuses costs the memory of a restart."""
        self._kept = _Kept(turn=turn, before=before, after=after)
        if before == after:
            return
        try:
            write_whole(self._path, _adapter().dump_json(self._kept).decode())
        except OSError:
            return


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """What a handler needs beside the request itself: who asked, when, in which language, what is known.

    Ids are the same when the turn is tried again, so that the host does nothing twice.
    """

    sender: str
    now: datetime
    zone: tzinfo
    language: Language
    request_id: str
    known: ConversationState
    calls: int = 0
    new_questions: list[OpenQuestion] = field(default_factory=list)

    def next_id(self) -> str:
        """Return the id of the next thing that is asked of the host."""
        self.calls += 1
        return self.request_id if self.calls == 1 else f"{self.request_id}-{self.calls}"

    def say(self, form: str, /, **blanks: object) -> str:
        return say(form, self.language, **blanks)

    def moment(self, at: datetime, *, has_seconds: bool | None = None) -> str:
        return times.say_moment(at.astimezone(self.zone), self.language, has_seconds=has_seconds)

    def ask(self, parsed: ParsedRequest, slot: str, text: str, options: tuple[Option, ...] = ()) -> str:
        """Ask for what is missing; a second question of one message waits for the first."""
        lines = [text, *(f"{number}. {one.label}" for number, one in enumerate(options, 1))]
        question = OpenQuestion(
            wish=parsed,
            slot=slot,
            text="\n".join(lines),
            sender=self.sender,
            at=self.now.timestamp(),
            options=options,
        )
        self.new_questions.append(question)
        return question.text if len(self.new_questions) == 1 else ""

    def show(self, refs: Mapping[str, ShownEntry]) -> None:
        """Remember what the numbers of the list mean that is shown now."""
        self.known = replace(self.known, shown=dict(refs))

    def speak_of(self, *, task: str = "", list_name: str = "") -> None:
        """Remember what was spoken of."""
        self.known = replace(self.known, task=task or self.known.task, list=list_name or self.known.list)


# Answers

_ORDER = (
    re.compile(r"(?:the\s+)?(?:first|one|former|1st)(?:\s+one)?|첫\s*번?\s*째|하나|한\s*개", re.IGNORECASE),
    re.compile(
        r"(?:the\s+)?(?:second|two|latter|2nd|several|split)(?:\s+one)?|두\s*번\s*째|둘|두\s*개|따로|나눠(?:줘)?",
        re.IGNORECASE,
    ),
    re.compile(r"(?:the\s+)?(?:third|three|3rd)(?:\s+one)?|세\s*번\s*째|셋|세\s*개", re.IGNORECASE),
)
MAX_NAME_CHARS = 40


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer makes of a question: the requests to carry out, or none where it was a no."""

    wishes: tuple[ParsedRequest, ...] = ()
    is_no: bool = False


def take_answer(question: OpenQuestion, text: str, *, now: datetime, zone: tzinfo) -> Answer | None:
    """Return what `text` answers, None where it is no answer to this question."""
    said = one(text)
    if said is not None and said.intent == "never_mind":
        return Answer(is_no=True)
    match question.slot:
        case "when":
            is_no = said is not None and said.intent == "no"
            return Answer(is_no=True) if is_no else _when(question, text, now=now, zone=zone)
        case "what":
            return None if said is not None and said.intent not in ("yes", "no") else _what(question, text)
        case "list":
            return _list(question, text, said)
        case "which":
            return _which(question, text)
        case _:
            return _sure(question, said)


def _what(question: OpenQuestion, text: str) -> Answer:
    """Take the words as what is to be done, and a time among them too where none was said."""
    parsed = question.wish.having(trouble="")
    (read, *others) = reminders(text.strip(), parsed.language)
    is_timed = parsed.intent == "remind" and not parsed.slot("when") and not others and read.slot("when")
    if is_timed:
        return Answer((parsed.having(what=read.slot("what"), when=read.slot("when")),))
    return Answer((parsed.having(what=text.strip()),))


def _sure(question: OpenQuestion, said: ParsedRequest | None) -> Answer | None:
    if said is None or said.intent not in ("yes", "no"):
        return None
    return Answer(is_no=True) if said.intent == "no" else Answer((question.wish.having(sure="yes"),))


def _when(question: OpenQuestion, text: str, *, now: datetime, zone: tzinfo) -> Answer | None:
    """Join the answer to what was known of the time, or take it in its place."""
    parsed, said = (
        question.wish,
        PATTERNS["around_answer"].sub("", PATTERNS["around_answer"].sub("", text.strip())).strip(),
    )
    before = parsed.slot("when")
    said = f"at {said}" if re.fullmatch(r"\d{1,2}", said) else said
    joined = [_with_half(before, said), *_joined(before, said), said] if before else [said]
    tried = [(form, times.read(form, now=now, zone=zone)) for form in dict.fromkeys(filter(None, joined))]
    if all(isinstance(result, TimeRefusal) and result.reason is Reason.NO_TIME for _, result in tried):
        return None
    moments = [form for form, result in tried if not isinstance(result, TimeRefusal | times.DateOnly)]
    halves = [
        form
        for form, result in tried
        if isinstance(result, TimeRefusal) and result.reason is Reason.WHICH_HALF
    ]
    days = [form for form, result in tried if isinstance(result, times.DateOnly)]
    best = (moments or halves or days or [said])[0]
    return Answer((parsed.having(when=best, trouble="", sure="yes"),))


def _joined(before: str, said: str) -> list[str]:
    """Keep as much of what was said before as fits: `today at 8:00` and `tomorrow` are `tomorrow at 8:00`."""
    words = before.split()
    kept = [" ".join(words[:end]) for end in range(len(words), 0, -1)]
    kept += [" ".join(words[start:]) for start in range(1, len(words))]
    return [form for part in kept for form in (f"{part} {said}", f"{said} {part}")]


def _with_half(before: str, said: str) -> str:
    """`tomorrow at 3` and `in the evening`: any word for a half of the day tells which."""
    is_korean = re.search(r"[가-힣]", before) is not None
    if PATTERNS["morning"].fullmatch(said):
        return f"{before} 오전" if is_korean else f"{before} am"
    if PATTERNS["evening"].fullmatch(said):
        return f"{before} 오후" if is_korean else f"{before} pm"
    return ""


def _list(question: OpenQuestion, text: str, said: ParsedRequest | None) -> Answer | None:
    if said is not None and said.intent == "show_list":
        return Answer((question.wish.having(list=said.slot("list") or TODO),))
    name = PATTERNS["around_answer"].sub("", re.sub(r"^(?:to|on|the)\s+|에$", "", text.strip())).strip()
    is_name = 0 < len(name) <= MAX_NAME_CHARS and len(name.split()) <= 3 and said is None
    return Answer((question.wish.having(list=name),)) if is_name else None


def _which(question: OpenQuestion, text: str) -> Answer | None:
    """By number, by place, by a part of its words, or all of them."""
    said = PATTERNS["around_answer"].sub("", text.strip()).strip(" .").casefold()
    options = question.options
    if PATTERNS["all_options"].fullmatch(said):
        return Answer(tuple(option.wish for option in options))
    number = re.fullmatch(r"(?:number|no\.?|#)?\s*(\d{1,3})\s*번?(?:이?요)?\.?", said)
    if number:
        place = int(number[1]) - 1
        return Answer((options[place].wish,)) if 0 <= place < len(options) else None
    for place, order in enumerate(_ORDER[: len(options)]):
        if order.fullmatch(said):
            return Answer((options[place].wish,))
    fitting = [option for option in options if len(said) > 1 and said in option.label.casefold()]
    return Answer((fitting[0].wish,)) if len(fitting) == 1 else None
