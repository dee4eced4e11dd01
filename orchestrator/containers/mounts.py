"""List the host's directories that a group's container sees, and create them."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base import dirfd
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.protocols import Mount
from orchestrator.domain.values import Group
from orchestrator.home.directory import SHOWN_TO_MAIN

PASSABLE, READABLE, PRIVATE = 0o711, 0o755, 0o700
"""Modes of folders. A container's user is often another than the host's, so it needs to pass or to read."""
ROOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUser:
    """The user and group that a container runs as."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDirectory:
    """A directory of a group: `path` is relative to the home, `target` is the path in the container."""

    path: Path
    target: str
    is_writable: bool = False
    mode: int = READABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRights:
    """The access of a restricted container to its group's files."""

    reads: bool
    """Whether it sees them; otherwise it has an empty folder in their place."""
    writes: bool


NO_FILES = FileRights(reads=False, writes=False)


def group_directories(group: Group, rights: FileRights | None = None) -> tuple[GroupDirectory, ...]:
    """List the directories that belong to a group alone; for main, also `groups/global`, which others read.

    Pure. `rights` are those of a restricted container; None for an ordinary one. A restricted container has a
    session folder of its own. If it may not read the group's files, it also has folders of its own in place
    of these files and of `data/env`. All of its own folders are empty at its start.

    No directory is written by both sides, so the host never writes where a container can plant a link. The
    exceptions are the group's files and `groups/global`, in which the host follows no link.
    """
    ipc = Path("data/ipc", group.folder)
    session = Path("data/sessions", group.folder)
    env = Path("data/env", group.folder)
    files = Path("groups", group.folder)
    writes_files = True
    if rights is not None:
        session = restricted_folder(group)
        writes_files = rights.writes
        if not rights.reads:
            env = session / "env"
            files = session / "group"
            writes_files = True  # it is a folder of its own, so writing changes nothing of the group
    shared = GroupDirectory(path=Path("groups/global"), target="/workspace/global", is_writable=True)
    return (
        GroupDirectory(path=ipc / "input", target="/workspace/ipc/input"),
        GroupDirectory(path=ipc / "replies", target="/workspace/ipc/replies"),
        GroupDirectory(
            path=ipc / "messages", target="/workspace/ipc/messages", is_writable=True, mode=PRIVATE
        ),
        GroupDirectory(path=ipc / "tasks", target="/workspace/ipc/tasks", is_writable=True, mode=PRIVATE),
        GroupDirectory(path=env, target="/workspace/env"),
        GroupDirectory(path=files, target="/workspace/group", is_writable=writes_files),
        GroupDirectory(path=session / ".claude", target="/home/andy/.claude", is_writable=True, mode=PRIVATE),
        *((shared,) if group.is_main else ()),
    )


def restricted_folder(group: Group) -> Path:
    """Return the folder for the files that only a group's restricted containers have. Pure.

    It is relative to the home. A container is restricted if it answers a person whose role may not do
    everything; it must neither see nor change the session of the group's ordinary containers.
    """
    return Path("data/sessions", group.folder, "apart")


def plan_mounts(
    group: Group,
    *,
    home: Path,
    has_global: bool = False,
    shown: Iterable[str] = (),
    rights: FileRights | None = None,
) -> tuple[Mount, ...]:
    """List the mounts of a group's container, without creating their directories. Pure.

    `has_global` says whether `groups/global/`, the texts for all groups, exists. `shown` names the entries of
    the home that the owner's group, main, may see. Main gets each of them as a mount of its own in an empty
    directory, so that the rest of the home, with its secrets, is not there. `rights` are those of a
    restricted turn; None for no restriction.
    """
    group_mounts = tuple(
        Mount(source=home / place.path, target=place.target, is_writable=place.is_writable)
        for place in group_directories(group, rights)
    )
    if not group.is_main:
        shared = Mount(source=home / "groups" / "global", target="/workspace/global")
        return (*group_mounts, shared) if has_global else group_mounts
    view = Mount(source=_view_folder(home), target="/workspace/project")
    return (
        *group_mounts,
        view,
        *(Mount(source=home / name, target=f"{view.target}/{name}") for name in shown),
    )


def prepare(
    group: Group, *, home: Path, uid: int, gid: int | None = None, rights: FileRights | None = None
) -> tuple[Mount, ...]:
    """Create a group's directories, set the owner of those that its container writes, and list its mounts.

    `uid` is the number of the container's user, and `gid` that of the user's Unix group, the same as `uid` if
    None. A host that is not root cannot change owners. With `rights` the container is restricted: the files
    of the group's earlier restricted containers are removed, and so are all answers to requests of the
    group's containers. For main, the mount points of the entries of the home that it may see are created.
    Blocks.

    Raises:
        ContainerError: a link or a file is in the way, or a directory is another user's.
        OSError: the home cannot be written.
    """
    home = home.resolve()
    owner = ContainerUser(uid=uid, gid=uid if gid is None else gid)
    if rights is not None:
        _empty(home / restricted_folder(group))
        _empty(home / "data" / "ipc" / group.folder / "replies")
    for place in group_directories(group, rights):
        # If a restricted container may only read the group's files, these keep the owner that others need.
        is_only_read_here = rights is not None and not place.is_writable
        if not (is_only_read_here and place.path.is_relative_to("groups")):
            _prepare_directory(home, place, owner)
    shown = _create_view(home) if group.is_main else ()
    has_global = _is_directory(home / "groups" / "global")
    return plan_mounts(group, home=home, has_global=has_global, shown=shown, rights=rights)


def _empty(path: Path) -> None:
    """Remove a folder and all its contents, if it exists, following no link.

    Raises:
        ContainerError: the path is a link.
        OSError: it cannot be removed.
    """
    if path.is_symlink():
        raise ContainerError(f"{path} is a link: remove it.")
    if path.exists():
        dirfd.remove_tree(path)


def program_folder(home: Path, name: str) -> Path | None:
    """Return the owner's folder of an MCP server that is a program; None when it does not exist. Blocks.

    A link counts as missing: the mount would follow it as root, to wherever it leads by then.
    """
    folder = home / "mcp" / name
    return folder if _is_directory(folder.parent) and _is_directory(folder) else None


def _prepare_directory(home: Path, place: GroupDirectory, owner: ContainerUser) -> None:
    """Create a directory of a group if missing.

    A directory that the container writes is given to the container's user, `owner`. Any other gets the mode
    in `place`.
    """
    with _opened_directory(home, place) as descriptor:
        if place.is_writable:
            _give_to_container(descriptor, home / place.path, owner)
        else:
            os.fchmod(descriptor, place.mode)


@contextmanager
def _opened_directory(home: Path, place: GroupDirectory) -> Iterator[int]:
    """Open a directory under the home, created if missing, and yield its descriptor.

    It is opened one part of the path at a time, so that no link is followed on the way.
    """
    current = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number, part in enumerate(place.path.parts, start=1):
            is_last = number == len(place.path.parts)
            inner = _open_inner(
                current, part, mode=place.mode if is_last else PASSABLE, shown=home / place.path
            )
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def _open_inner(parent_fd: int, name: str, *, mode: int, shown: Path) -> int:
    """Open a directory in the open directory `parent_fd`, created if missing; return its descriptor.

    Only a new directory gets the `mode`. `shown` is the path that an error names. Raises `ContainerError` if
    it is a link or no directory, or cannot be opened or given its mode.
    """
    is_new = _create_folder(parent_fd, name, mode)
    try:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent_fd)
        try:
            if is_new:
                # The umask may have taken away rights that the container's user needs.
                os.fchmod(inner, mode)
        except OSError:
            os.close(inner)
            raise
    except OSError as error:
        is_other_kind = error.errno in (errno.ELOOP, errno.ENOTDIR)
        rule = ": it has to be a directory, no link" if is_other_kind else ""
        raise ContainerError(f"'{name}' in {shown} cannot be used{rule} ({error.strerror}).") from error
    return inner


def _create_folder(parent_fd: int, name: str, mode: int) -> bool:
    """Create a folder in the open directory `parent_fd`; return False if something of that name exists.

    Raises:
        ContainerError: `name` is not the name of a single folder.
    """
    if name in {"", ".", ".."} or "/" in name:
        raise ContainerError(f"'{name}' is no folder name.")
    try:
        os.mkdir(name, mode, dir_fd=parent_fd)
    except FileExistsError:
        return False
    return True


def _give_to_container(descriptor: int, path: Path, owner: ContainerUser) -> None:
    """Make the container's user, `owner`, the owner of an open directory and of the entries directly in it.

    A host that is not root cannot do that, so the directory has to be the user's already.

    Raises:
        ContainerError: it belongs to another user; the text, which names `path`, has the fix.
    """
    if os.geteuid() == ROOT:
        os.fchown(descriptor, owner.uid, owner.gid)
        for name in os.listdir(descriptor):
            with suppress(FileNotFoundError):  # another container of the group works there, and removed it
                _give_entry(descriptor, name, owner)
    elif os.fstat(descriptor).st_uid != owner.uid:
        command = f"sudo chown -R {owner.uid} {shlex.quote(str(path))}"
        raise ContainerError(f"{path} belongs to another user: {command}")


def _give_entry(parent_fd: int, name: str, owner: ContainerUser) -> None:
    """Make the container's user the owner of a plain file or folder in an open directory, if root owns it."""
    entry_info = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    # A file with a second link may be another one of root's, which would be given away with it.
    is_plain = stat.S_ISDIR(entry_info.st_mode) or (
        stat.S_ISREG(entry_info.st_mode) and entry_info.st_nlink == 1
    )
    if entry_info.st_uid == ROOT and is_plain:
        os.chown(name, owner.uid, owner.gid, dir_fd=parent_fd, follow_symlinks=False)


def _view_folder(home: Path) -> Path:
    """Return the folder that main's container sees as the project. It contains only empty mount points."""
    return home / "data" / "project"


def _create_view(home: Path) -> tuple[str, ...]:
    """Create an empty mount point for each entry of the home that main may see, and return their names.

    Entries that do not exist are left out. Without the mount points, an engine would create them as root.
    """
    view = _view_folder(home)
    view.mkdir(mode=READABLE, parents=True, exist_ok=True)
    shown = tuple(name for name in SHOWN_TO_MAIN if _is_directory(home / name) or _is_file(home / name))
    for name in shown:
        _create_mount_point(view / name, is_directory=_is_directory(home / name))
    return shown


def _create_mount_point(path: Path, *, is_directory: bool) -> None:
    """Create an empty folder or file, unless it exists, over which the real one is mounted."""
    if is_directory:
        path.mkdir(mode=READABLE, exist_ok=True)
    else:
        path.touch(mode=0o644)


def _is_directory(path: Path) -> bool:
    """Return whether a path is a directory, no link to one."""
    return path.is_dir() and not path.is_symlink()


def _is_file(path: Path) -> bool:
    """Return whether a path is a file, no link to one."""
    return path.is_file() and not path.is_symlink()
