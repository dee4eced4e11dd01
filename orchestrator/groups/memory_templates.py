"""The texts that agents start with: a CLAUDE.md for each group, and the prompt that all groups share.

Both come from templates, which never replace a file that somebody wrote or changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from agent_runner.wire.files import write_whole
from orchestrator.base.dirfd import open_file
from orchestrator.base.tables import short
from orchestrator.base.terminal_escaping import all_visible
from orchestrator.domain.values import Group

MEMORY = "CLAUDE.md"
PROMPT = ("AGENTS.md", "SOUL.md", "USER.md", "DASHBOARD.md", "TOOLS.md")
"""The files of the shared prompt: rules, persona, the owner, the dashboard, the tools."""
SHIPPED = Path("data/prompt_files.json")
"""The file, below the home, with digests of the prompt's files as Andy wrote them last.

By these Andy recognises a file that nobody has changed since.
"""
MAX_READ_BYTES = 64 * 1024
"""Bytes that are read of a file, however large a container has made it."""
MAX_TEXT_BYTES = 16 * 2**20
"""Bytes from which on a note is not searched: a search reads one whole note into memory."""
MAX_SHOWN_NAME_CHARS = 100
"""Characters of a note's name that are shown."""
MAX_TEXTS = 5_000
"""Largest number of notes in a folder that are searched."""
SHARED = "global"
ROOT = 0
"""The user id of root."""


def ensure_memory(home: Path, group: Group, *, assistant: str) -> bool:
    """Create a group's folder and its memory file CLAUDE.md if they are missing. Blocks.

    Return whether the file is new. A container may write the folder, so no link in it is followed. `home` is
    Andy's home directory, and `assistant` the assistant's name.

    Raises:
        OSError: the folder is a link or a file, or cannot be written.
    """
    kind = "main" if group.is_main else "group"
    return _ensure_file(home, group.folder, template(kind, assistant=assistant, group=group.name))


def write_memory(home: Path, folder: str, text: str, *, name: str = MEMORY) -> None:
    """Write a text as a group's memory file CLAUDE.md, or as another of its notes, replacing it. Blocks.

    `name` is the name of the file in the group's folder. `text` may have lone surrogates in place of bytes
    that are no UTF-8, as `whole_text` returns them. `home` is Andy's home directory.

    Raises:
        OSError: the folder is a link or a file, or cannot be written.
    """
    _ensure_file(home, folder, text, name=name, replaces=True)


class OwnTexts(NamedTuple):
    """The notes in a folder of a group: files `.md`, by their names in alphabetical order."""

    searchable: tuple[str, ...]
    """At most `MAX_TEXTS` regular files of less than `MAX_TEXT_BYTES`."""
    others: tuple[str, ...]
    """Larger files, those beyond `MAX_TEXTS`, and links; `*` if the folder itself cannot be read.

    They are as `shown_name` returns them.
    """


def own_texts(home: Path, folder: str) -> OwnTexts:
    """Return the notes in a group's folder, divided into those that can be searched and the others. Blocks.

    None of either if there is no such folder; `*` among the others if it cannot be read. No link is followed.
    """
    try:
        inner = os.open(home / "groups" / folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except FileNotFoundError:
        return OwnTexts((), ())
    except OSError:
        return OwnTexts((), ("*",))  # none can be searched
    try:
        with os.scandir(inner) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if entry.name.endswith(".md") and not entry.is_dir(follow_symlinks=False)
            )
        searchable = tuple(name for name in names[:MAX_TEXTS] if _is_searchable(inner, name))
    finally:
        os.close(inner)
    searchable_names = frozenset(searchable)
    return OwnTexts(searchable, tuple(shown_name(name) for name in names if name not in searchable_names))


def shown_name(name: str) -> str:
    """Return the name of a note for texts and database rows: one short line with nothing invisible.

    A container chooses the name: it may be no UTF-8, which no database accepts, or have line ends.
    """
    return short(all_visible(name), MAX_SHOWN_NAME_CHARS)


def _is_searchable(directory_fd: int, name: str) -> bool:
    """Return whether a note can be searched, as for the name of a person who is to be forgotten.

    That is a regular file with no other hard link, of less than `MAX_TEXT_BYTES`; not one that is gone.
    """
    try:
        status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:  # deleted since the folder was listed
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size < MAX_TEXT_BYTES


def whole_text(home: Path, folder: str, name: str) -> str | None:
    """Return the whole text of a note in a group's folder, so that it can be changed and written. Blocks.

    Bytes that are no UTF-8 are in it as lone surrogates, from which `write_memory` makes the same bytes
    again; `legible` removes them. None if there is no such file, it is not a regular one, or it has
    `MAX_TEXT_BYTES` or more by now.
    """
    read = _read(home, folder, name, limit=MAX_TEXT_BYTES)
    return None if read is None or len(read) >= MAX_TEXT_BYTES else read.decode("utf-8", "surrogateescape")


def legible(text: str) -> str:
    """Return the text of `whole_text` as `own_text` would: without NUL and bytes that are no UTF-8. Pure."""
    return _as_text(text.encode("utf-8", "surrogateescape"))


def own_text(home: Path, folder: str, name: str) -> str | None:
    """Return the first `MAX_READ_BYTES` of the text file `name` in a group's folder. Blocks.

    None if there is no such file, or it is not a regular one.
    """
    read = _read(home, folder, name, limit=MAX_READ_BYTES)
    return None if read is None else _as_text(read)


def is_cut(home: Path, folder: str, name: str) -> bool:
    """Return whether `own_text` lacks the end of a file, which has more than `MAX_READ_BYTES`. Blocks."""
    read = _read(home, folder, name, limit=MAX_READ_BYTES + 1)
    return read is not None and len(read) > MAX_READ_BYTES


def _read(home: Path, folder: str, name: str, *, limit: int) -> bytes | None:
    """Return the first `limit` bytes of the file `name` in a group's folder. Blocks.

    None if there is no such file, or it is not a regular one. A container may write the folder, so no link is
    followed.
    """
    try:
        inner = os.open(home / "groups" / folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        try:
            descriptor = open_file(inner, name)
        finally:
            os.close(inner)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


def _as_text(content: bytes) -> str:
    """Return the content of a file as a text, without NUL and without bytes that are no UTF-8."""
    return content.decode("utf-8", "ignore").replace("\0", "")


def ensure_shared_memory(home: Path, *, assistant: str) -> bool:
    """Create the folder `groups/global/`, which all groups but main read, and its CLAUDE.md. Blocks.

    Existing ones stay. Return whether the file is new. `home` is Andy's home directory, and `assistant` the
    assistant's name.
    """
    return _ensure_file(home, SHARED, template(SHARED, assistant=assistant, group=SHARED))


def ensure_prompt(home: Path, *, assistant: str, worker_minutes: int) -> list[str]:
    """Write the missing files of the prompt that all groups share, and update those that nobody has changed.

    Return the names of the written files. The digests of all that have today's text are stored, by which a
    later change of the owner is recognised. Blocks. `home` is Andy's home directory, `assistant` the
    assistant's name, and `worker_minutes` the interval of the dashboard's worker, which the texts name.

    Raises:
        OSError: the folder is a link or a file, or cannot be written.
    """
    stored = _digests(home)
    shipped = dict(stored)
    written = []
    for name in PROMPT:
        text = _shipped(name).replace("{assistant}", assistant)
        text = text.replace("{worker_minutes}", str(worker_minutes))
        present = own_text(home, SHARED, name)
        if present != text:
            # A text that differs from the one that was written last was changed by the owner: it stays.
            if present is not None and shipped.get(name) != _digest(present):
                continue
            if not _ensure_file(home, SHARED, text, name=name, replaces=present is not None):
                continue
            written.append(name)
        # Also if the file was there: after a crash, or a loss of the digests, this one is missing.
        shipped[name] = _digest(text)
    if shipped != stored:
        (home / SHIPPED).parent.mkdir(exist_ok=True)
        write_whole(home / SHIPPED, json.dumps(shipped, indent=1))
    return written


def template(kind: str, *, assistant: str, group: str) -> str:
    """Return the initial text of the memory file of a new group.

    `kind` is `main`, `group`, or `global` for the folder that groups share. `assistant` and `group` are the
    names that the text mentions.
    """
    name = " ".join(group.split())
    return _shipped(f"{kind}.CLAUDE.md").replace("{assistant}", assistant).replace("{group}", name)


def _shipped(name: str) -> str:
    """Return the text of a template that comes with Andy."""
    return (resources.files("orchestrator.groups") / "templates" / name).read_text(encoding="utf-8")


def _digests(home: Path) -> dict[str, str]:
    """Return the digest of each shared file as Andy wrote it last, by name; empty if that is unknown."""
    try:
        parsed = json.loads((home / SHIPPED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _digest(text: str) -> str:
    """Return a hash of a text, by which a changed file is recognised."""
    return hashlib.sha256(text.encode()).hexdigest()


def _ensure_file(home: Path, folder: str, text: str, *, name: str = MEMORY, replaces: bool = False) -> bool:
    """Write a text as the file `name` in a group's folder, which is made if it is missing. Blocks.

    An existing file is replaced only with `replaces`. Return whether the file was written. No link is
    followed. Raises `OSError`.
    """
    groups = os.open(home / "groups", os.O_RDONLY | os.O_DIRECTORY)
    try:
        inner = _open_group(groups, folder)
    finally:
        os.close(groups)
    try:
        return (replaces or not _is_there(inner, name)) and _write(inner, name, text, replaces=replaces)
    finally:
        os.close(inner)


def _open_group(groups_fd: int, folder: str) -> int:
    """Open a group's folder, which is made if it is missing, and return its descriptor. Blocks.

    `groups_fd` is the descriptor of the folder of all groups. Raises `OSError` if a link or a file is in the
    way.
    """
    is_new = not _is_there(groups_fd, folder)
    if is_new:
        # The host and a command may both make the folder of a group that was just registered.
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, dir_fd=groups_fd)
    inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=groups_fd)
    if is_new:
        os.fchmod(inner, 0o755)  # whatever the umask: a container reads it as another user
        _give_to_owner_of(groups_fd, inner)
    return inner


def _is_there(directory_fd: int, name: str) -> bool:
    """Return whether a directory has an entry of this name, even a broken link."""
    try:
        os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write(directory_fd: int, name: str, text: str, *, replaces: bool) -> bool:
    """Write a file in an open directory, whole or not at all; return whether it was written.

    It is written under a temporary name first. Without `replaces`, an existing file stays, and False is
    returned. Raises `OSError`.
    """
    # Without the name in it: that may already have the most bytes that a file system allows.
    partial = f".{secrets.token_hex(8)}.partial"
    descriptor = os.open(
        partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory_fd
    )
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
            _give_to_owner_of(directory_fd, file.fileno())
        if replaces:
            os.rename(partial, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
            return True
        # A link, unlike a rename, never replaces a file that somebody has made meanwhile.
        os.link(partial, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd, follow_symlinks=False)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=directory_fd)
    return True


def _give_to_owner_of(directory_fd: int, file_fd: int) -> None:
    """Give an open file to the owner of its open directory, who can then change it.

    Nothing is done unless this process runs as root: other users cannot give files away.
    """
    if os.geteuid() == ROOT:
        owner = os.fstat(directory_fd)
        os.fchown(file_fd, owner.st_uid, owner.st_gid)
