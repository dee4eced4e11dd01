"""Create a run's directories in its container as the host describes them, and find the agent's changes."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_runner.wire import trees
from agent_runner.wire.trees import Changes, Entry, HashCache, Tree, TreeError

UNKNOWN = "unknown"
"""The `content` of an entry that the host may or may not have. No real entry has it: it counts as changed."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Numbers of errors because of which this machine cannot store the group's files."""


class LocalTrees:
    """The directories of the run in this container, and the last state of them that the host has."""

    def __init__(self, root: Path) -> None:
        """`root` is the directory in place of `/workspace`."""
        self._root = root
        self._writable: dict[str, Tree] = {}
        """Map each target that the agent may write to the tree as the host has it."""
        self._caches: dict[str, HashCache] = {}
        """Map each target to the hashes of its files, so that unchanged files are not read again."""

    def path_of(self, target: str) -> Path:
        """Return the local path for `target`, the path of a directory in the host's own containers.

        Raises `TreeError` for a target that has no place here.
        """
        if target == "/home/andy/.claude":
            return self._root / ".home" / ".claude"
        if not target.startswith("/workspace/"):
            raise TreeError(f"{target!r} has no place here")
        return self._root / trees.checked_path(target.removeprefix("/workspace/"))

    def is_writable(self, target: str) -> bool:
        """Return whether the agent may write to this target, so that its changes are sent."""
        return target in self._writable

    def update_tree(self, target: str, target_tree: Tree, *, is_whole: bool, is_writable: bool) -> list[str]:
        """Give a tree the host's directories and links; return the paths of missing and of different files.

        `target_tree` is the host's description; if it `is_whole`, entries that it does not have are removed
        here. `is_writable`: whether the agent may change the tree, so that its changes are looked for later.
        Blocks.
        """
        path = self.path_of(target)
        path.mkdir(parents=True, exist_ok=True)
        with trees.opened_root(path) as root:
            present = trees.scan(root, self._caches.setdefault(target, {}))
            different = trees.changes(present, target_tree)
            if not is_whole:
                different = Changes((), different.put)
            needed = _apply_without_files(root, different)
        if is_writable:
            self._writable[target] = dict(target_tree)
        return needed

    def change(self, target: str, changed: Changes) -> None:
        """Apply the host's changes of the tree `target`; the contents of changed files follow. Blocks.

        Only `put_file` records a file as one that the host has. If its content is lost with the connection,
        the old file here stays recorded, and so is not taken for a change by the agent.
        """
        with trees.opened_root(self.path_of(target)) as root:
            _apply_without_files(root, changed)
        if target in self._writable:
            put = {path: entry for path, entry in changed.put.items() if entry.kind != "file"}
            _apply_to_tree(self._writable[target], Changes(changed.removed, put))

    def put_file(self, target: str, path: str, entry: Entry, source: Any) -> None:
        """Put a file with the content of `source`, an open file, in place at a path of the tree `target`.

        Blocks. From then on it counts as the file that the host has. Raises `StaleFile` if the content is not
        that of `entry`.
        """
        with trees.opened_root(self.path_of(target)) as root:
            trees.put_file(root, path, entry, source.read)
        if target in self._writable:
            self._writable[target][path] = entry

    def find_changes(self) -> dict[str, Changes]:
        """Return the agent's changes that the host does not have, by target. Blocks.

        Raises `TreeError` if a tree exceeds a limit, `OSError` if it cannot be read.
        """
        changes_by_target: dict[str, Changes] = {}
        for target, before in self._writable.items():
            with trees.opened_root(self.path_of(target)) as root:
                if changed := trees.changes(before, trees.scan(root, self._caches.setdefault(target, {}))):
                    changes_by_target[target] = changed
        return changes_by_target

    def file_changes(self, target: str, path: str) -> dict[str, Changes]:
        """Return the changes by target that contain one file and its parent directories. Blocks.

        Empty if there is no such file, or if the agent may not write to the target.
        """
        with suppress(OSError, TreeError), trees.opened_root(self.path_of(target)) as root:
            whole = trees.scan(root, self._caches.setdefault(target, {}))
            entry = whole.get(path)  # the agent may have named a file that is gone, or never was
            if entry is not None and entry.kind == "file" and target in self._writable:
                # Each part of the path up to a slash is a parent directory.
                parents = {path[:end]: whole[path[:end]] for end, letter in enumerate(path) if letter == "/"}
                return {target: Changes((), {**parents, path: entry})}
        return {}

    def mark_uncertain(self, sent: dict[str, Changes]) -> None:
        """Record that the host may or may not have these changes, which were sent to it, given by target.

        In the record of the host's trees, their paths get the content `UNKNOWN`. So `find_changes` returns
        these paths again, as they are then, until `mark_stored` is called.
        """
        for target, changed in sent.items():
            tree = self._writable[target]
            removed = {path: tree[path] for path in changed.removed if path in tree}
            # Removed paths are put back, because the host may still have them. All keep their kind: if it
            # differed from the kind on the disk, `find_changes` would have the host remove the path first,
            # and with a directory all that is in it.
            changed_entries = {**removed, **changed.put}
            tree.update({path: replace(entry, content=UNKNOWN) for path, entry in changed_entries.items()})

    def mark_stored(self, stored: dict[str, Changes]) -> None:
        """Record that the host has these changes now, given by target."""
        for target, changed in stored.items():
            _apply_to_tree(self._writable[target], changed)


def problem_of(error: BaseException) -> dict[str, str]:
    """Return {"problem": reason} for an error by which this machine's disk cannot store files; else {}.

    It is a field of the next hello, by which the host learns why the last connection ended.
    """
    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
        return {}
    return {"problem": os.strerror(error.errno)}


def _apply_without_files(root_fd: int, changed: Changes) -> list[str]:
    """Apply removals, directories and links below an open directory; return the paths of the changed files.

    The files stay as they are: their contents come later.
    """
    for path in changed.removed:
        trees.remove(root_fd, path)
    needed = []
    for path, entry in changed.put.items():
        if entry.kind == "dir":
            trees.put_directory(root_fd, path, entry)
        elif entry.kind == "link":
            trees.put_link(root_fd, path, entry)
        else:
            needed.append(path)
    return needed


def _apply_to_tree(tree: Tree, changed: Changes) -> None:
    """Apply changes to the record of a tree, not to the disk."""
    for path in changed.removed:
        tree.pop(path, None)
    tree.update(changed.put)
