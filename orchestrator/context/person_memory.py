"""Note what is to be known of people, and say what is known of one of them.

The agent says whom a note concerns, by names or addresses; the host finds the addresses among the people of
the group, and fills in who said it: those who asked in the turn, as their messenger has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

from agent_runner.wire import context_tools as wire
from orchestrator.base.redaction import redact
from orchestrator.base.tables import short
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder, Group, Turn
from orchestrator.groups import people
from orchestrator.groups.people import GroupPerson
from orchestrator.store import memory_notes, person_records, turn_effects
from orchestrator.store.database import Tx
from orchestrator.store.memory_notes import MemoryNote
from orchestrator.store.person_records import RequestedEntry

MAX_NOTES = 500
"""So many notes a group has at most."""
SHOWN_CHARS = 300
NOTE = "person_note"
"""The kind of what is remembered that a note is; its id is `person_note.` and its number."""

_OF_ONESELF = re.compile(
    r"(?<![\w'’])(?:i|i['’]m|i['’]ve|i['’]d|me|my|mine|myself)(?![\w'’])"
    r"|(?<!\S)(?:(?:나|저)(?:는|도|를|한테|에게)?|내가?|제가?)(?!\S)",
    re.IGNORECASE,
)
"""Words by which people speak of themselves."""


class NoteRefused(BadRequest):
    """A note cannot be kept."""

    code = "bad_note"


class NotTheirs(BadRequest):
    """Somebody asked what is known of another person, whose words their role may not read."""

    code = "not_allowed"

    def __init__(self) -> None:
        super().__init__("Who asks may only ask what is known of themselves: leave people out.")


class NobodyAsks(BadRequest):
    """It is not known of whom something is asked."""

    code = "nobody_asks"


class PersonNoteView(TypedDict):
    """Something that was noted of people."""

    id: str
    text: str
    about: Annotated[list[str], "Names of those whom it concerns."]
    said_by: Annotated[list[str], "Names of those who asked when it was noted."]
    at_ms: int


class EntryView(TypedDict):
    """A reminder or a task that somebody asked for."""

    id: str
    text: str


class MentionView(TypedDict):
    """Something else that is remembered and has a person's name."""

    id: str
    kind: str
    text: str


class KnownPersonView(TypedDict):
    """All that is stored of one person of a group."""

    address: str
    aliases: list[str]
    name: str
    role: str
    since_ms: int | None
    messages: int
    notes: list[PersonNoteView]
    mentions: list[MentionView]
    reminders: list[EntryView]
    tasks: list[EntryView]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteView:
    """A note as people read it."""

    id: str
    text: str
    about: tuple[str, ...]
    """Names of those whom it concerns; the address of who has none."""
    said_by: tuple[str, ...]
    """Names of those who may have said it."""
    at_ms: int

    def line(self) -> str:
        """Return it on one line, with whom it concerns and who said it."""
        origin = "; ".join(
            f"{word} {', '.join(names)}"
            for word, names in (("about", self.about), ("said by", self.said_by))
            if names
        )
        text = redact(short(self.text, SHOWN_CHARS))
        return f"{text} ({origin})" if origin else text

    def to_row(self) -> PersonNoteView:
        """Return it as the command line, HTTP and agents get it."""
        return {
            "id": self.id,
            "text": redact(self.text),
            "about": list(self.about),
            "said_by": list(self.said_by),
            "at_ms": self.at_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """Something else that is remembered: a line of the notes, a decision, a plan."""

    id: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPerson:
    """All that is stored of one person of a group."""

    person: GroupPerson
    message_count: int
    notes: tuple[NoteView, ...]
    reminders: tuple[RequestedEntry, ...]
    tasks: tuple[RequestedEntry, ...]
    mentions: tuple[Mention, ...] = ()
    """Other things that are remembered and have their name, where that may be read."""

    def to_row(self) -> KnownPersonView:
        """Return it as the command line, HTTP and agents get it."""
        person = self.person
        return {
            "address": person.address,
            "aliases": list(person.aliases),
            "name": person.name,
            "role": person.role.value,
            "since_ms": person.since_ms,
            "messages": self.message_count,
            "notes": [one.to_row() for one in self.notes],
            "mentions": [{"id": one.id, "kind": one.kind, "text": redact(one.text)} for one in self.mentions],
            "reminders": [{"id": one.id, "text": redact(one.text)} for one in self.reminders],
            "tasks": [{"id": one.id, "text": redact(one.text)} for one in self.tasks],
        }

    def lines(self) -> list[str]:
        """Return it as an agent and a terminal show it."""
        person = self.person
        known_as = ", ".join((person.address, *person.aliases))
        head = f"{person.name or person.address}: {person.role.value}; known as {known_as}"
        return [
            f"{head}; {self.message_count} messages with their words.",
            *(f"- {one.id}: {one.line()}" for one in self.notes),
            *(f"- {one.kind} {one.id}: {redact(short(one.text, SHOWN_CHARS))}" for one in self.mentions),
            *(f"- reminder {one.id}: {redact(short(one.text, SHOWN_CHARS))}" for one in self.reminders),
            *(f"- task {one.id}: {redact(short(one.text, SHOWN_CHARS))}" for one in self.tasks),
        ]


async def note(
    tx: Tx, group: Group, turn: Turn | None, given: wire.UseMemory, *, request_id: str, now_ms: int
) -> NoteView:
    """Keep a sentence with whom it concerns and who said it; once for each request.

    Raises:
        NoteRefused: it is empty or too long, or there are too many.
        UnknownPerson, AmbiguousPerson: it is not clear whom it concerns.
    """
    text = redact(" ".join(given.about.replace("\0", " ").split()))
    if not text or len(text) > wire.MAX_NOTE_CHARS:
        raise NoteRefused(f"A note is a sentence of 1 to {wire.MAX_NOTE_CHARS} characters.")
    if await memory_notes.count(tx, group.folder) >= MAX_NOTES:
        raise NoteRefused(f"There are {MAX_NOTES} notes of this chat: have some forgotten first.")
    listed = await people.somebody(tx, group.folder)
    said_by = await person_records.askers_of(tx, turn.id) if turn is not None else []
    if given.people is None:
        # Of several who ask, nobody knows who "I" is.
        own = said_by if len(said_by) == 1 and _OF_ONESELF.search(text) else []
        meant = [*(one for one in listed if one.addresses & set(own)), *people.mentioned(listed, text)]
    else:
        meant = [people.named(listed, one) for one in given.people]
    made = MemoryNote(
        folder=group.folder,
        text=text,
        about=tuple(dict.fromkeys(one.address for one in meant)),
        said_by=tuple(said_by),
        at_ms=now_ms,
    )
    if turn is None:
        number = await memory_notes.add(tx, made, request_id=request_id)
    else:
        async with turn_effects.recording(tx, turn.id, now_ms=now_ms):
            number = await memory_notes.add(tx, made, request_id=request_id)
    return _view(made, number, await _names(tx, group.folder))


async def notes_of(tx: Tx, folder: Folder) -> list[NoteView]:
    """Return the notes of a group, oldest first."""
    names = await _names(tx, folder)
    return [_view(one, one.id, names) for one in await memory_notes.of_group(tx, folder)]


async def known_of(tx: Tx, group: Group, address: str) -> KnownPerson:
    """Return what is stored of the person with this address or name. Raises as `groups.people.named`."""
    return await _known_of(tx, group, people.named(await people.somebody(tx, group.folder), address))


async def known_for(
    tx: Tx, group: Group, turn: Turn | None, given: Sequence[str] | None, *, reads_history: bool
) -> list[KnownPerson]:
    """Return what is stored of those whom an agent names; of those who ask in its turn where it names none.

    Raises:
        NotTheirs: one of them does not ask in the turn, and who asks may not read what others said.
        NobodyAsks: nobody is named, and nobody asks.
        UnknownPerson, AmbiguousPerson: it is not clear who is meant.
    """
    askers = await person_records.askers_of(tx, turn.id) if turn is not None else []
    listed = await people.somebody(tx, group.folder)
    asking = [one for one in listed if one.addresses & set(askers)]
    if not given:
        meant = asking
    elif reads_history:
        meant = [people.named(listed, one) for one in given]
    else:
        try:
            meant = [people.named(asking, one, shows_others=False) for one in given]
        except people.UnknownPerson as error:
            raise NotTheirs from error
    if not meant:
        raise NobodyAsks("Nobody asks in this turn: say in people who is meant.")
    return [await _known_of(tx, group, one) for one in meant]


async def _known_of(tx: Tx, group: Group, person: GroupPerson) -> KnownPerson:
    addresses, names = person.addresses, await _names(tx, group.folder)
    notes = [one for one in await memory_notes.of_group(tx, group.folder) if one.belongs_to(addresses)]
    return KnownPerson(
        person=person,
        message_count=await person_records.count_messages(tx, group.folder, addresses),
        notes=tuple(_view(one, one.id, names) for one in notes),
        reminders=tuple(await person_records.reminders_of(tx, group.folder, addresses)),
        tasks=tuple(await person_records.tasks_of(tx, group.folder, addresses)),
    )


async def _names(tx: Tx, folder: Folder) -> dict[str, str]:
    listed = await people.somebody(tx, folder)
    return {address: one.name for one in listed for address in one.addresses if one.name}


def _view(one: MemoryNote, number: int, names: dict[str, str]) -> NoteView:
    return NoteView(
        id=f"{NOTE}.{number}",
        text=one.text,
        about=_named(one.about, names),
        said_by=_named(one.said_by, names),
        at_ms=one.at_ms,
    )


def _named(addresses: Iterable[str], names: dict[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names.get(one, one) for one in addresses))
