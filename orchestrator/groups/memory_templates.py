"""The texts that agents start with: a CLAUDE.md for each group, and the prompt that all groups share.

Both come from templates, and a file that somebody wrote or changed is never replaced.
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

from agent_runner.wire.files import write_whole
from orchestrator.domain.values import Group

MEMORY = "CLAUDE.md"
PROMPT = ("AGENTS.md", "SOUL.md", "USER.md", "DASHBOARD.md", "TOOLS.md")
"""The files of the shared prompt: rules, persona, the owner, the dashboard, the tools."""
SHIPPED = Path("data/prompt_files.json")
"""Digests of the prompt's files as last written, which show whether a file is unchanged."""
MAX_READ_BYTES = 64 * 1024
"""Bytes that are read of a file, however large a container has made it."""
MAX_TEXTS = 200
"""Notes of a group that are listed."""
SHARED = "global"
ROOT = 0
"""The user id of root."""


def ensure_memory(home: Path, group: Group, *, assistant: str) -> bool:
    """Create a group's folder and its CLAUDE.md if missing. Return whether the file is new. Blocks.

    A container may write the folder: no link in it is followed.

    Raises:
        OSError: the folder is a link or a file, or cannot be written.
    """
    kind = "main" if group.is_main else "group"
    return _ensure(home, group.folder, template(kind, assistant=assistant, group=group.name))


def write_memory(home: Path, folder: str, text: str, *, name: str = MEMORY) -> None:
    """Replace a group's CLAUDE.md, or another of its notes, as a whole. Blocks.

    Raises:
        OSError: the folder is a link or a file, or cannot be written.
    """
    _ensure(home, folder, text, name=name, replaces=True)


def own_texts(home: Path, folder: str, *, limit: int = MAX_READ_BYTES) -> list[str]:
    """Return the names of the notes (`.md`) in a group's folder of less than `limit` bytes. Blocks."""
    try:
        inner = os.open(home / "groups" / folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        with os.scandir(inner) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".md")]
        first_names = sorted(names)[:MAX_TEXTS]
        return [
            name
            for name in first_names
            if _is_note(os.stat(name, dir_fd=inner, follow_symlinks=False), limit)
        ]
    finally:
        os.close(inner)


def _is_note(status: os.stat_result, limit: int) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size < limit


def own_text(home: Path, folder: str, name: str, *, limit: int = MAX_READ_BYTES) -> str | None:
    """Return the first `limit` bytes of a text file in a group's folder, or None. Blocks.

    A container may write the folder: no link is followed, and only regular files are opened.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        inner = os.open(home / "groups" / folder, flags | os.O_DIRECTORY)
        try:
            descriptor = os.open(name, flags, dir_fd=inner)
        finally:
            os.close(inner)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        return file.read(limit).decode("utf-8", "ignore").replace("\0", "")


def ensure_shared_memory(home: Path, *, assistant: str) -> bool:
    """Make `groups/global/`, which all groups but main read, and its CLAUDE.md. Return whether it is new."""
    return _ensure(home, SHARED, template(SHARED, assistant=assistant, group=SHARED))


def ensure_prompt(home: Path, *, assistant: str, worker_minutes: int) -> list[str]:
    """Write the files of the shared prompt that are missing, and update those that nobody has changed.

    Return the names of those written. Blocks.

    Raises:
        OSError: the folder is a link or a file, or cannot be written.
    """
    shipped = _digests(home)
    written = []
    for name in PROMPT:
        text = _shipped(name).replace("{assistant}", assistant)
        text = text.replace("{worker_minutes}", str(worker_minutes))
        present = own_text(home, SHARED, name)
        # A text that differs from the one that was written last was changed by the owner: it stays.
        if present == text or (present is not None and shipped.get(name) != _digest(present)):
            continue
        if _ensure(home, SHARED, text, name=name, replaces=present is not None):
            shipped[name] = _digest(text)
            written.append(name)
    if written:
        (home / SHIPPED).parent.mkdir(exist_ok=True)
        write_whole(home / SHIPPED, json.dumps(shipped, indent=1))
    return written


def template(kind: str, *, assistant: str, group: str) -> str:
    """Return the initial memory of a new group of a kind: `main`, `group`, or `global`."""
    name = " ".join(group.split())
    return _shipped(f"{kind}.CLAUDE.md").replace("{assistant}", assistant).replace("{group}", name)


def _shipped(name: str) -> str:
    return (resources.files("orchestrator.groups") / "templates" / name).read_text(encoding="utf-8")


def _digests(home: Path) -> dict[str, str]:
    """Return the digest of each shared file as it was written last, by name; empty if that is unknown."""
    try:
        parsed = json.loads((home / SHIPPED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _ensure(home: Path, folder: str, text: str, *, name: str = MEMORY, replaces: bool = False) -> bool:
    """Write a file in a group's folder, which is made if it is missing; return whether it was written.

    A file that is there stays, unless `replaces`. No link is followed.
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
    """Return a descriptor of a group's folder, made if missing. Raises `OSError` for a link or a file."""
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
    """Write a whole file under a temporary name, then rename it; return whether it was written.

    Without `replaces`, a file that has the name already stays, and False is returned.
    """
    partial = f".{name}.{secrets.token_hex(4)}.partial"
    descriptor = os.open(
        partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory_fd
    )
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
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
    """Give a file that root wrote to the owner of its directory, so that an ordinary user can change it."""
    if os.geteuid() == ROOT:
        owner = os.fstat(directory_fd)
        os.fchown(file_fd, owner.st_uid, owner.st_gid)
