"""Store notes about people, and return what is known about one of them.

The agent names the people whom a note is about, by name or address; the host looks up their addresses in the
group. The host also records who said it: the people who asked in the turn, by their messenger addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

from agent_runner.wire import context_tools as wire
from orchestrator.base.redaction import redact
from orchestrator.base.tables import counted, short
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Folder, Group, Turn
from orchestrator.groups import people
from orchestrator.groups.people import GroupPerson
from orchestrator.store.database import Tx
from orchestrator.store.people import memory_notes
from orchestrator.store.people import records as person_records
from orchestrator.store.people.memory_notes import MemoryNote
from orchestrator.store.people.records import RequestedEntry
from orchestrator.store.undo import turn_effects

MAX_NOTES = 500
"""The largest number of notes of a group."""
SHOWN_CHARS = 300
NOTE = "person_note"
"""The kind of a note among the remembered items; a note's id is `person_note.` and its number."""

# "I", "I'm", "my"; "나", "저는", "내가". The look-arounds take whole words only, not the "me" in "home".
_FIRST_PERSON = re.compile(
    r"(?<![\w'’])(?:i|i['’]m|i['’]ve|i['’]d|me|my|mine|myself)(?![\w'’])"
    r"|(?<!\S)(?:(?:나|저)(?:는|도|를|한테|에게)?|내가?|제가?)(?!\S)",
    re.IGNORECASE,
)
"""Words by which people speak of themselves."""


class NoteRefused(BadRequest):
    """A note cannot be stored."""

    code = "bad_note"


class NotTheirs(BadRequest):
    """Somebody asked about another person, and their role may not read other people's messages."""

    code = "not_allowed"

    def __init__(self) -> None:
        super().__init__("Who asks may only ask what is known of themselves: leave people out.")


class NobodyAsks(BadRequest):
    """A request about people names nobody, and no person asks in the turn."""

    code = "nobody_asks"


class PersonNoteView(TypedDict):
    """A note about people."""

    id: str
    text: str
    about: Annotated[list[str], "The names of the people whom the note is about."]
    said_by: Annotated[list[str], "The names of the people who had written when the note was made."]
    at_ms: int


class EntryView(TypedDict):
    """A reminder or a task that somebody asked for."""

    id: str
    text: str


class MentionView(TypedDict):
    """Another stored text that has the person's name."""

    id: str
    kind: str
    text: str


class KnownPersonView(TypedDict):
    """Everything that is stored about one person of a group."""

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
    """A note with names in place of addresses."""

    id: str
    text: str
    about: tuple[str, ...]
    """Names of the people whom the note is about; an address where the name is not known."""
    said_by: tuple[str, ...]
    """Names of the people who may have said it: all who asked in the turn."""
    at_ms: int

    def line(self) -> str:
        """Return the note as a line for people, with the names of those whom it is about and who said it."""
        labelled_names = (("about", self.about), ("said by", self.said_by))
        origin = "; ".join(f"{label} {', '.join(names)}" for label, names in labelled_names if names)
        text = redact(short(self.text, SHOWN_CHARS))
        return f"{text} ({origin})" if origin else text

    def to_row(self) -> PersonNoteView:
        """Return the note as data for the command line, HTTP and agents; its text is redacted."""
        return {
            "id": self.id,
            "text": redact(self.text),
            "about": list(self.about),
            "said_by": list(self.said_by),
            "at_ms": self.at_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """Another remembered item with the person's name: a line of the notes, a decision, a plan."""

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
    """Other remembered items with their name; empty if the asking person may not read them."""

    def to_row(self) -> KnownPersonView:
        """Return the person's record as data for the command line, HTTP and agents; texts are redacted."""
        person = self.person
        return {
            "address": person.address,
            "aliases": list(person.aliases),
            "name": person.name,
            "role": person.role.value,
            "since_ms": person.since_ms,
            "messages": self.message_count,
            "notes": [entry.to_row() for entry in self.notes],
            "mentions": [
                {"id": entry.id, "kind": entry.kind, "text": redact(entry.text)} for entry in self.mentions
            ],
            "reminders": [{"id": entry.id, "text": redact(entry.text)} for entry in self.reminders],
            "tasks": [{"id": entry.id, "text": redact(entry.text)} for entry in self.tasks],
        }

    def lines(self) -> list[str]:
        """Return the person's record as lines of text, for an agent or a terminal."""
        person = self.person
        known_as = ", ".join((person.address, *person.aliases))
        head = f"{person.name or person.address}: {person.role.value}; known as {known_as}"
        return [
            f"{head}; {counted(self.message_count, 'message')} with their words.",
            *(f"- {entry.id}: {entry.line()}" for entry in self.notes),
            *(
                f"- {entry.kind} {entry.id}: {redact(short(entry.text, SHOWN_CHARS))}"
                for entry in self.mentions
            ),
            *(f"- reminder {entry.id}: {redact(short(entry.text, SHOWN_CHARS))}" for entry in self.reminders),
            *(f"- task {entry.id}: {redact(short(entry.text, SHOWN_CHARS))}" for entry in self.tasks),
        ]


async def note(
    tx: Tx, group: Group, turn: Turn | None, request: wire.UseMemory, *, request_id: str, now_ms: int
) -> NoteView:
    """Store a sentence with the people whom it is about and who said it; return it.

    The sentence is `request.about`, the people are `request.people`; without those, the people whom the text
    names, and the speaker if it has words such as "I". A repetition with the same `request_id` stores no
    second note. `turn` is the one in which it was said; None outside of a turn, when nobody is known to have
    said it.

    Raises:
        NoteRefused: the sentence is empty or too long, or the group has too many notes.
        UnknownPerson, AmbiguousPerson: it is not clear whom the note is about.
    """
    text = redact(" ".join(request.about.replace("\0", " ").split()))
    if not text or len(text) > wire.MAX_NOTE_CHARS:
        raise NoteRefused(f"A note is a sentence of 1 to {wire.MAX_NOTE_CHARS} characters.")
    is_stored = await memory_notes.is_stored(tx, group.folder, request_id=request_id)
    if not is_stored and await memory_notes.count(tx, group.folder) >= MAX_NOTES:
        raise NoteRefused(f"There are {MAX_NOTES} notes of this chat: have some forgotten first.")
    people_of_group = await people.known_people(tx, group.folder)
    said_by = await person_records.askers_of(tx, turn.id) if turn is not None else []
    if request.people is None:
        # If several people ask in one turn, "I" may be any of them.
        speaker_addresses = said_by if len(said_by) == 1 and _FIRST_PERSON.search(text) else []
        speakers = [person for person in people_of_group if person.addresses & set(speaker_addresses)]
        people_concerned = [*speakers, *people.mentioned(people_of_group, text)]
    else:
        people_concerned = [people.named(people_of_group, name) for name in request.people]
    new_note = MemoryNote(
        folder=group.folder,
        text=text,
        about=tuple(dict.fromkeys(person.address for person in people_concerned)),
        said_by=tuple(said_by),
        at_ms=now_ms,
    )
    if turn is None:
        number = await memory_notes.add(tx, new_note, request_id=request_id)
    else:
        # Recorded as an effect of the turn, so that it can be undone.
        async with turn_effects.recording(tx, turn.id, now_ms=now_ms):
            number = await memory_notes.add(tx, new_note, request_id=request_id)
    return _view(new_note, number, await _names_by_address(tx, group.folder))


async def notes_of(tx: Tx, folder: Folder) -> list[NoteView]:
    """Return the notes of a group, oldest first."""
    names = await _names_by_address(tx, folder)
    return [_view(note, note.id, names) for note in await memory_notes.of_group(tx, folder)]


async def known_of(tx: Tx, group: Group, address_or_name: str) -> KnownPerson:
    """Return what is stored about the person of a group with this address or name.

    Raises:
        UnknownPerson, AmbiguousPerson: it is not clear who is meant.
    """
    return await _known_of(
        tx, group, people.named(await people.known_people(tx, group.folder), address_or_name)
    )


async def known_for(
    tx: Tx, group: Group, turn: Turn | None, named_people: Sequence[str] | None, *, reads_history: bool
) -> list[KnownPerson]:
    """Return what is stored about the people whom an agent names, or else about those who ask in its turn.

    `named_people` are names or addresses; without them, those who ask in `turn` are meant. `reads_history`:
    whether the asking people may read other people's messages.

    Raises:
        NotTheirs: somebody else is named, and the asking person may not read other people's messages.
        NobodyAsks: nobody is named, and nobody asks.
        UnknownPerson, AmbiguousPerson: it is not clear who is meant.
    """
    askers = await person_records.askers_of(tx, turn.id) if turn is not None else []
    people_of_group = await people.known_people(tx, group.folder)
    asking_people = [person for person in people_of_group if person.addresses & set(askers)]
    if not named_people:
        chosen_people = asking_people
    elif reads_history:
        chosen_people = [people.named(people_of_group, each) for each in named_people]
    else:
        try:
            # Only the askers may be named. The refusal must not name the other people of the group.
            chosen_people = [people.named(asking_people, each, shows_others=False) for each in named_people]
        except people.UnknownPerson as error:
            raise NotTheirs from error
    if not chosen_people:
        raise NobodyAsks("Nobody asks in this turn: say in people who is meant.")
    return [await _known_of(tx, group, each) for each in chosen_people]


async def _known_of(tx: Tx, group: Group, person: GroupPerson) -> KnownPerson:
    """Return all that is stored about one person of a group, except mentions in other remembered items."""
    addresses, names = person.addresses, await _names_by_address(tx, group.folder)
    # Notes about the person, and notes that the person may have said.
    notes = [note for note in await memory_notes.of_group(tx, group.folder) if note.belongs_to(addresses)]
    return KnownPerson(
        person=person,
        message_count=await person_records.count_messages(tx, group.folder, addresses),
        notes=tuple(_view(note, note.id, names) for note in notes),
        reminders=tuple(await person_records.reminders_of(tx, group.folder, addresses)),
        tasks=tuple(await person_records.tasks_of(tx, group.folder, addresses)),
    )


async def _names_by_address(tx: Tx, folder: Folder) -> dict[str, str]:
    """Map the addresses of a group's people to their names; an address without a name is left out."""
    people_of_group = await people.known_people(tx, folder)
    return {address: person.name for person in people_of_group for address in person.addresses if person.name}


def _view(note: MemoryNote, number: int, names: dict[str, str]) -> NoteView:
    """Return a note as it is shown: with an id made of its `number`, and with names in place of addresses.

    `names` maps addresses to names.
    """
    return NoteView(
        id=f"{NOTE}.{number}",
        text=note.text,
        about=_names_or_addresses(note.about, names),
        said_by=_names_or_addresses(note.said_by, names),
        at_ms=note.at_ms,
    )


def _names_or_addresses(addresses: Iterable[str], names: dict[str, str]) -> tuple[str, ...]:
    """Return the names of the people with these addresses, each once.

    An address that is not in `names` is returned itself.
    """
    return tuple(dict.fromkeys(names.get(address, address) for address in addresses))
