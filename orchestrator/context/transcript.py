"""Read which messages an agent's session has from the transcript that its container wrote.

The CLI silently resumes a transcript that lost lines, and waits for ever on one that is a pipe. So the host
checks it first. The container may have put anything there: `read` follows no link, never waits, and reads no
more than `TranscriptLimits` allow. It blocks: call it in a thread.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
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
CONVERSATION_MARK = b'"parentUuid"'
"""The mark of lines that are part of the conversation; inside a text JSON escapes its quotes."""
NOT_A_QUESTION = re.compile(rb'"type"\s*:\s*"tool_result"|"content"\s*:\s*"<(?:local-command-|command-name>)')
"""The result of a tool, or a message of the CLI itself: user messages that are no question."""
ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""A surrogate, escaped in JSON."""
# These find "user", "u2" and "u1" in {"parentUuid": "u1", "type": "user", "uuid": "u2", …}.
KIND = re.compile(rb'"type"\s*:\s*"(user|assistant|system|attachment)"')
OWN_ID = re.compile(rb'"uuid"\s*:\s*"([0-9A-Za-z-]{1,64})"')
PARENT_ID = re.compile(rb'"parentUuid"\s*:\s*(?:"([0-9A-Za-z-]{1,64})"|null)')


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptLimits:
    """The limits for reading a container's file. A file beyond them is not used."""

    projects: int = 64
    file_bytes: int = 64 * 1024 * 1024
    line_bytes: int = 16 * 1024 * 1024
    """Bytes of the longest line that is read. A line with a picture has 14 MiB."""
    parsed_bytes: int = 256 * 1024
    """Bytes of the longest line that is parsed; for a longer one only ids are read, to not block the host."""
    lines: int = 200_000
    seconds: float = 1.0


class TranscriptState(StrEnum):
    """The result of reading the transcript of a session."""

    MISSING = "missing"
    EMPTY = "empty"
    """The file exists, but has no message."""
    REFUSED = "refused"
    """The transcript must not be passed to the CLI."""
    HEADLESS = "headless"
    """The chain of messages does not reach a first message: the oldest ones are lost."""
    WHOLE = "whole"


@dataclass(frozen=True)
class Transcript:
    """The messages of a session, as its transcript has them."""

    state: TranscriptState
    reason: str = ""
    """The reason as a sentence, for a refused transcript."""
    chain: tuple[str, ...] = ()
    """The uuids of the messages that the CLI continues from, oldest first, also those before a compaction."""
    questions: frozenset[str] = field(default=frozenset())
    """The uuids in the chain that are questions."""
    last_compaction: int = 0
    """The position of the last compaction in the chain, 0 if there was none.

    No session can continue from a message before it.
    """

    @cached_property
    def _positions(self) -> dict[str, int]:
        """The position of each message in the chain, by its uuid."""
        return {uuid: position for position, uuid in enumerate(self.chain)}

    def has(self, uuid: str) -> bool:
        """Return whether the message with this uuid is in the chain."""
        return uuid in self._positions

    def first_question_after(self, uuid: str) -> int | None:
        """Return the position in the chain of the first question after the message `uuid`; None if none is.

        The message must be in the chain.
        """
        start = self._positions[uuid] + 1
        return next(
            (
                position
                for position in range(start, len(self.chain))
                if self.chain[position] in self.questions
            ),
            None,
        )


def read(
    sessions: Path, folder: str, session_id: str, *, limits: TranscriptLimits | None = None
) -> Transcript:
    """Return the messages of a group's session, from the file that the agent's program wrote. Blocks.

    `sessions` is `data/sessions`, `folder` the group's folder. If several of the agent's working directories
    have a file of the session, the one with the most messages counts. The state of the result says if the
    file is missing, or must not be used, as when the group's own directories cannot be entered.

    Raises:
        OSError: `sessions`, the list of working directories or an opened file cannot be read.
        TimeoutError: reading took longer than the limit.
    """
    limits = limits or TranscriptLimits()
    if not SESSION_ID.fullmatch(session_id):
        return _refused("its session has no id that the CLI would take")
    with ExitStack() as stack:
        directory_descriptor = stack.enter_context(opened(sessions))
        try:
            # Each directory is opened within the one before it, so that no link is followed.
            for part in (folder, ".claude", "projects"):
                directory_descriptor = stack.enter_context(inner(directory_descriptor, part))
        except FileNotFoundError:
            return Transcript(TranscriptState.MISSING)
        except OSError as error:
            return _refused(f"its session's directory cannot be entered: {error.strerror}")
        return _find_longest(directory_descriptor, f"{session_id}.jsonl", limits)


def remove_all(sessions: Path, folder: str, current_id: str | None = None) -> None:
    """Delete the transcripts of all sessions of a group but that with the id `current_id`, if it is given.

    Blocks; follows no link. `sessions` is `data/sessions`, `folder` the group's folder. Nothing happens if
    there are none. If a container has put something else in the place of a file or a directory, all others
    are still deleted.

    Raises:
        OSError: one cannot be deleted, or the directories that contain them cannot be entered; all others
            were deleted.
    """
    failures: list[OSError] = []
    remaining = f"{current_id}.jsonl" if current_id is not None else ""
    with ExitStack() as stack:
        try:
            directory_descriptor = stack.enter_context(opened(sessions))
            for part in (folder, ".claude", "projects"):
                directory_descriptor = stack.enter_context(inner(directory_descriptor, part))
        except (FileNotFoundError, NotADirectoryError):
            return
        for project in _names(directory_descriptor):
            try:
                with inner(directory_descriptor, project) as project_descriptor:
                    failures += _remove_transcripts(project_descriptor, remaining)
            except NotADirectoryError:
                continue
            except OSError as error:
                failures.append(error)
    if failures:
        raise failures[0]


def _remove_transcripts(directory_fd: int, remaining: str) -> list[OSError]:
    """Delete the transcripts in an open directory; return the errors of those that could not be deleted.

    The file with the name `remaining` stays. A directory is no transcript, whatever its name.
    """
    failures = []
    for name in _names(directory_fd):
        if name.endswith(".jsonl") and name != remaining:
            try:
                os.unlink(name, dir_fd=directory_fd)
            except IsADirectoryError:
                continue
            except OSError as error:
                failures.append(error)
    return failures


def _names(directory_fd: int) -> list[str]:
    """Return the names in an open directory, sorted."""
    with os.scandir(directory_fd) as entries:
        return sorted(entry.name for entry in entries)


def _find_longest(projects_fd: int, name: str, limits: TranscriptLimits) -> Transcript:
    """Return the longest transcript of the file name `name` in the project folders of an open directory.

    A project folder is named after a working directory of the agent; at most `limits.projects` are looked at.
    A refused transcript counts as one without messages.
    """
    with os.scandir(projects_fd) as entries:
        # In all projects: measured, the CLI resumes a session from whatever working directory.
        names = sorted(entry.name for entry in islice(entries, limits.projects))
    transcripts = [
        transcript
        for transcript in (_read_in_project(projects_fd, project, name, limits) for project in names)
        if transcript
    ]
    return max(
        transcripts, key=lambda transcript: len(transcript.chain), default=Transcript(TranscriptState.MISSING)
    )


def _read_in_project(
    projects_fd: int, project: str, name: str, limits: TranscriptLimits
) -> Transcript | None:
    """Return the transcript with the file name `name` in a project folder; None if it is not there.

    `projects_fd` is the open directory of the folders of projects, `project` the folder's name. A file that
    must not be read makes a refused transcript.
    """
    try:
        with inner(projects_fd, project) as directory_descriptor:
            descriptor = open_file(directory_descriptor, name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _refused(f"its transcript cannot be opened: {error.strerror}")
    with os.fdopen(descriptor, "rb") as file:
        refusal = _refusal_reason(os.fstat(descriptor), limits)
        return _refused(refusal) if refusal else _read_entries(file, limits)


def _refusal_reason(info: os.stat_result, limits: TranscriptLimits) -> str | None:
    """Return why the transcript file with this status must not be read; None if it may."""
    # A hard link could be another file of this disk.
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        return "its transcript is no file of its own"
    if info.st_size > limits.file_bytes:
        return f"its transcript has more than {limits.file_bytes // 1024**2} MiB"
    return None


@dataclass(slots=True)
class _Entry:
    """A message of the main conversation, as a line of the transcript has it."""

    uuid: str
    parent: str | None
    """The uuid of the message before it; None for the first one."""
    is_question: bool
    """Whether it is a person's question."""
    is_boundary: bool
    """Whether the session was compacted at this point."""


def _read_entries(file: BinaryIO, limits: TranscriptLimits) -> Transcript:
    """Return the messages in an open transcript file, or a refused transcript if it has too many lines.

    Raises:
        TimeoutError: reading took longer than `limits.seconds`.
    """
    entries: dict[str, _Entry] = {}
    until = time.monotonic() + limits.seconds
    for number, line in enumerate(_short_enough_lines(file, limits)):
        if number >= limits.lines:
            return _refused("its transcript has too many lines")
        if time.monotonic() > until:
            raise TimeoutError(f"the transcript could not be read in {limits.seconds:g} s")
        entry = _entry(line, limits) if CONVERSATION_MARK in line else None
        if entry is not None:
            # An entry that is repeated counts at its last place in the file, so it moves to the dict's end.
            entries.pop(entry.uuid, None)
            entries[entry.uuid] = entry
    return _follow_parents(entries)


def _short_enough_lines(file: BinaryIO, limits: TranscriptLimits) -> Iterator[bytes]:
    """Yield the lines of a file that have at most `line_bytes`; longer ones are skipped.

    Reading stops after `file_bytes`, because the file may grow meanwhile; a line that this cuts is skipped.
    """
    remaining = limits.file_bytes
    # `readline` returns a line that is too long in pieces. This says whether the next piece continues one.
    is_continuation = False
    while remaining > 0 and (piece := file.readline(max_bytes := min(remaining, limits.line_bytes))):
        remaining -= len(piece)
        # A shorter piece without a line break is the last line of the file.
        is_whole = piece.endswith(b"\n") or len(piece) < max_bytes
        if is_whole and not is_continuation:
            yield piece
        is_continuation = not is_whole


def _entry(line: bytes, limits: TranscriptLimits) -> _Entry | None:
    """Return the message on a line of a transcript; None if it is no message of the main conversation.

    Of a line that is longer than `parsed_bytes` only the ids are read.
    """
    message = _parsed_line(line) if len(line) <= limits.parsed_bytes else _ids_of_long_line(line)
    if message is None or message.is_sidechain or not MESSAGE_ID.fullmatch(message.uuid or ""):
        return None
    # A compaction starts a new chain; the logical parent is the message before it.
    is_boundary = message.subtype == "compact_boundary"
    parent = message.parent or (message.logical_parent if is_boundary else None)
    # The CLI writes results of tools, its own remarks and summaries as messages of the user, too.
    is_no_question = message.is_meta or message.is_summary or NOT_A_QUESTION.search(line)
    return _Entry(
        uuid=message.uuid or "",
        parent=parent,
        is_question=message.type == "user" and not is_no_question,
        is_boundary=is_boundary,
    )


class _Message(BaseModel):
    """The fields of a transcript line that are used."""

    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parent: str | None = Field(default=None, alias="parentUuid")
    logical_parent: str | None = Field(default=None, alias="logicalParentUuid")
    is_meta: bool = Field(default=False, alias="isMeta")
    is_summary: bool = Field(default=False, alias="isCompactSummary")
    is_sidechain: bool = Field(default=False, alias="isSidechain")


def _parsed_line(line: bytes) -> _Message | None:
    """Return the fields of a transcript's line; None if it is no valid message."""
    try:
        # The CLI accepts a lone surrogate, which a cut text may end with; pydantic refuses it.
        return _Message.model_validate_json(ESCAPED_SURROGATE.sub(rb"\\ufffd", line))
    except ValidationError:
        return None


def _ids_of_long_line(line: bytes) -> _Message | None:
    """Return the kind and the ids of a message whose line is too long to parse, as one with a picture is.

    None if they are not all on the line.
    """
    kind, uuid, parent = (pattern.search(line) for pattern in (KIND, OWN_ID, PARENT_ID))
    if kind is None or uuid is None or parent is None:
        return None
    parent_uuid = parent[1].decode() if parent[1] else None
    return _Message(type=kind[1].decode(), uuid=uuid[1].decode(), parentUuid=parent_uuid)


def _follow_parents(entries: dict[str, _Entry]) -> Transcript:
    """Return the conversation in the entries of a transcript, which are by uuid in the order of the file.

    It is the last entry, its parent, the parent of that and so on, in the order oldest first. The agent's
    program follows them in the same way. Other entries, such as those of an abandoned branch, are not in it.
    The state is `HEADLESS` if parents form a circle, or if the oldest entry found is no compaction and its
    parent is missing.
    """
    if not entries:
        return Transcript(TranscriptState.EMPTY)
    followed: dict[str, _Entry] = {}
    entry: _Entry | None = next(reversed(entries.values()))
    is_parent_lost = False
    # The container may have written parents that form a circle.
    while entry is not None and entry.uuid not in followed:
        followed[entry.uuid] = entry
        parent = entries.get(entry.parent) if entry.parent is not None else None
        # Messages before a compaction may be gone: the chain then starts at the compaction.
        is_parent_lost = entry.parent is not None and parent is None and not entry.is_boundary
        entry = parent
    chain = tuple(reversed(followed))
    boundaries = [position for position, uuid in enumerate(chain) if followed[uuid].is_boundary]
    return Transcript(
        TranscriptState.HEADLESS if is_parent_lost or entry is not None else TranscriptState.WHOLE,
        chain=chain,
        questions=frozenset(uuid for uuid, entry in followed.items() if entry.is_question),
        last_compaction=boundaries[-1] if boundaries else 0,
    )


def _refused(reason: str) -> Transcript:
    """Return a transcript that must not be passed to the CLI; `reason` is a sentence."""
    return Transcript(TranscriptState.REFUSED, reason)
