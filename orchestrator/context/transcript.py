"""Read what an agent's session holds from the transcript that its container wrote.

The CLI resumes a transcript that lost lines without a word, and waits for ever on one that is a pipe. So it
is looked at before: `look` blocks (call it in a thread), follows no link, waits for nobody and reads no more
than `TranscriptLimits` say, whatever lies there.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, Field, ValidationError

from orchestrator.base.dirfd import inner, open_file, opened

SESSION_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
MESSAGE_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
"""The form of a message's id. It is strict: the id becomes an argument of a command line."""
MARK = b'"parentUuid"'
"""The mark of lines that are part of the conversation; inside a text JSON escapes its quotes."""
OWN = re.compile(rb'"type"\s*:\s*"tool_result"|"content"\s*:\s*"<(?:local-command-|command-name>)')
"""A tool's answer, or what the CLI says on its own: nobody's question."""
HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
KIND = re.compile(rb'"type"\s*:\s*"(user|assistant|system|attachment)"')
OWN_ID = re.compile(rb'"uuid"\s*:\s*"([0-9A-Za-z-]{1,64})"')
PARENT_ID = re.compile(rb'"parentUuid"\s*:\s*(?:"([0-9A-Za-z-]{1,64})"|null)')


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptLimits:
    """The limits for reading a container's file. A file beyond them is no transcript to rely on."""

    projects: int = 64
    file_bytes: int = 64 * 1024 * 1024
    line_bytes: int = 16 * 1024 * 1024
    """A picture takes seven, twice. A longer line is left out."""
    parsed_bytes: int = 256 * 1024
    """Bytes of the longest line that is parsed; of a longer one only ids are read, to not block the host."""
    lines: int = 200_000
    seconds: float = 1.0


class TranscriptState(StrEnum):
    MISSING = "missing"
    EMPTY = "empty"
    """There is a file without any conversation in it."""
    REFUSED = "refused"
    """The transcript is not fit to be given to the CLI."""
    HEADLESS = "headless"
    """The chain of messages does not lead back to a beginning: the first ones are lost."""
    WHOLE = "whole"


@dataclass(frozen=True)
class Transcript:
    """The part of a session that was found."""

    state: TranscriptState
    why: str = ""
    """The reason as a sentence, for a refused transcript."""
    chain: tuple[str, ...] = ()
    """The uuids of what the CLI goes on from, oldest first, those that a compaction has summed up too."""
    prompts: frozenset[str] = field(default=frozenset())
    """The uuids among them of questions."""
    since: int = 0
    """The place of the last compaction in the chain: no session can go back to before it."""

    @cached_property
    def _places(self) -> dict[str, int]:
        return {uuid: place for place, uuid in enumerate(self.chain)}

    def has(self, uuid: str) -> bool:
        return uuid in self._places

    def asked_after(self, uuid: str) -> int | None:
        """Return the place of the first question after a message, or None."""
        start = self._places[uuid] + 1
        return next(
            (place for place in range(start, len(self.chain)) if self.chain[place] in self.prompts), None
        )


def look(
    sessions: Path, folder: str, session_id: str, *, limits: TranscriptLimits | None = None
) -> Transcript:
    """Read what a group's session holds; `sessions` is `data/sessions`. Blocks.

    Raises:
        OSError: the host cannot read its own directories, or has too many files open.
        TimeoutError: it would have taken too long.
    """
    limits = limits or TranscriptLimits()
    if not SESSION_ID.fullmatch(session_id):
        return _refused("its session has no id that the CLI would take")
    with ExitStack() as stack:
        here = stack.enter_context(opened(sessions))
        try:
            for part in (folder, ".claude", "projects"):
                here = stack.enter_context(inner(here, part))
        except FileNotFoundError:
            return Transcript(TranscriptState.MISSING)
        except OSError as error:
            return _refused(f"its session's directory cannot be entered: {error.strerror}")
        return _find(here, f"{session_id}.jsonl", limits)


def remove_all(sessions: Path, folder: str) -> None:
    """Delete the transcripts of all sessions of a group. Blocks; follows no link.

    Raises:
        OSError: one cannot be deleted.
    """
    with ExitStack() as stack:
        try:
            here = stack.enter_context(opened(sessions))
            for part in (folder, ".claude", "projects"):
                here = stack.enter_context(inner(here, part))
        except OSError:
            return
        for project in _names(here)[: TranscriptLimits().projects]:
            with suppress(NotADirectoryError), inner(here, project) as place:
                for name in _names(place):
                    if name.endswith(".jsonl"):
                        os.unlink(name, dir_fd=place)


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def _find(projects: int, name: str, limits: TranscriptLimits) -> Transcript:
    """Search the projects: their names are made of the path at which the container works."""
    with os.scandir(projects) as entries:
        names = sorted(entry.name for entry in islice(entries, limits.projects))
    found = [one for one in (_in_project(projects, project, name, limits) for project in names) if one]
    return max(found, key=lambda one: len(one.chain), default=Transcript(TranscriptState.MISSING))


def _in_project(projects: int, project: str, name: str, limits: TranscriptLimits) -> Transcript | None:
    try:
        with inner(projects, project) as here:
            descriptor = open_file(here, name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _refused(f"its transcript cannot be opened: {error.strerror}")
    with os.fdopen(descriptor, "rb") as file:
        why_not = _why_not(os.fstat(descriptor), limits)
        return _refused(why_not) if why_not else _read(file, limits)


def _why_not(info: os.stat_result, limits: TranscriptLimits) -> str | None:
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        return "its transcript is no file of its own"
    if info.st_size > limits.file_bytes:
        return f"its transcript has more than {limits.file_bytes // 1024**2} MiB"
    return None


@dataclass(slots=True)
class _Entry:
    uuid: str
    parent: str | None
    is_prompt: bool
    is_boundary: bool


def _read(file: BinaryIO, limits: TranscriptLimits) -> Transcript:
    entries: dict[str, _Entry] = {}
    until = time.monotonic() + limits.seconds
    for number, line in enumerate(_lines(file, limits)):
        if number >= limits.lines:
            return _refused("its transcript has too many lines")
        if time.monotonic() > until:
            raise TimeoutError(f"the transcript could not be read in {limits.seconds:g} s")
        entry = _entry(line, limits) if MARK in line else None
        if entry is not None:
            entries.pop(entry.uuid, None)  # the last one is the last in the dict
            entries[entry.uuid] = entry
    return _transcript(entries)


def _lines(file: BinaryIO, limits: TranscriptLimits) -> Iterator[bytes]:
    """Yield the lines that are not too long, within the bytes that a file may have: it may grow meanwhile."""
    left = limits.file_bytes
    is_rest = False
    while left > 0 and (piece := file.readline(min(left, limits.line_bytes))):
        left -= len(piece)
        is_whole = piece.endswith(b"\n") or len(piece) < limits.line_bytes
        if is_whole and not is_rest:
            yield piece
        is_rest = not is_whole


def _entry(line: bytes, limits: TranscriptLimits) -> _Entry | None:
    message = _parsed(line) if len(line) <= limits.parsed_bytes else _scanned(line)
    if message is None or message.is_sidechain or not MESSAGE_ID.fullmatch(message.uuid or ""):
        return None
    is_boundary = message.subtype == "compact_boundary"
    parent = message.parent or (message.logical_parent if is_boundary else None)
    is_own = message.is_meta or message.is_summary or OWN.search(line)
    return _Entry(
        uuid=message.uuid or "",
        parent=parent,
        is_prompt=message.type == "user" and not is_own,
        is_boundary=is_boundary,
    )


class _Message(BaseModel):
    """The fields of a line that are read."""

    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parent: str | None = Field(default=None, alias="parentUuid")
    logical_parent: str | None = Field(default=None, alias="logicalParentUuid")
    is_meta: bool = Field(default=False, alias="isMeta")
    is_summary: bool = Field(default=False, alias="isCompactSummary")
    is_sidechain: bool = Field(default=False, alias="isSidechain")


def _parsed(line: bytes) -> _Message | None:
    try:
        # Half a character, as a cut text has, is JSON to the CLI and none to pydantic.
        return _Message.model_validate_json(HALF.sub(rb"\\ufffd", line))
    except ValidationError:
        return None


def _scanned(line: bytes) -> _Message | None:
    """Return the ids of a message whose other fields hold something large, such as a picture."""
    kind, uuid, parent = (pattern.search(line) for pattern in (KIND, OWN_ID, PARENT_ID))
    if kind is None or uuid is None or parent is None:
        return None
    above = parent[1].decode() if parent[1] else None
    return _Message(type=kind[1].decode(), uuid=uuid[1].decode(), parentUuid=above)


def _transcript(entries: dict[str, _Entry]) -> Transcript:
    """Follow the messages from the newest back to the first, as the CLI does."""
    if not entries:
        return Transcript(TranscriptState.EMPTY)
    back: dict[str, _Entry] = {}
    at: _Entry | None = next(reversed(entries.values()))
    is_lost = False
    while at is not None and at.uuid not in back:
        back[at.uuid] = at
        following = entries.get(at.parent) if at.parent is not None else None
        # What a compaction has summed up may be gone: its summary is the beginning then.
        is_lost = at.parent is not None and following is None and not at.is_boundary
        at = following
    chain = tuple(reversed(back))
    boundaries = [place for place, uuid in enumerate(chain) if back[uuid].is_boundary]
    return Transcript(
        TranscriptState.HEADLESS if is_lost or at is not None else TranscriptState.WHOLE,
        chain=chain,
        prompts=frozenset(uuid for uuid, entry in back.items() if entry.is_prompt),
        since=boundaries[-1] if boundaries else 0,
    )


def _refused(why: str) -> Transcript:
    return Transcript(TranscriptState.REFUSED, why)
