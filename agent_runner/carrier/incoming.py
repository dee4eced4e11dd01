"""Assemble the files that the host sends for a run from its messages."""

from __future__ import annotations

import asyncio
import io
import tempfile
from typing import Any

from agent_runner.carrier.local_trees import LocalTrees
from agent_runner.wire import trees
from agent_runner.wire.carrier import ENTRIES_A_MESSAGE, CarrierConnection, CarrierMessage, changes_from
from agent_runner.wire.trees import StaleFile, Tree


class IncomingFiles:
    """The files that the host announced, the parts that have arrived, and the files still missing."""

    def __init__(self, local: LocalTrees) -> None:
        """`local` are the run's directories in this container, into which the files are put.

        The host names each of them by its target: its path in the host's own containers.
        """
        self._trees = local
        self._announced: dict[str, Tree] = {}
        """Map each target to the entries that the host has described, also after their files have arrived."""
        self._incoming: dict[tuple[str, str], Any] = {}
        """Map target and path of each file that has not arrived whole to the parts that have arrived."""
        self._missing: set[tuple[str, str]] = set()
        """Target and path of each file that the container lacks."""
        self.last_change = ""
        """The mark of the last change that has arrived whole; a new connection begins by reporting it."""
        self._file_arrived = asyncio.Event()
        """Set when a file has arrived."""

    @property
    def is_whole(self) -> bool:
        """Return whether all announced files have arrived."""
        return not self._missing

    def begin_connection(self, *, has_order: bool) -> None:
        """Drop the parts of files that arrived over an earlier connection.

        `has_order`: whether the runner has its order. Until then the host describes all trees again on each
        connection, so the earlier descriptions are dropped, too.
        """
        self.close()  # on a new connection the host sends each file from its first byte
        if not has_order:
            self._announced.clear()
            self._missing.clear()

    def close(self) -> None:
        """Close and drop the files that have not arrived whole."""
        for file in self._incoming.values():
            file.close()
        self._incoming.clear()

    async def handle(self, message: CarrierMessage) -> None:
        """Apply a message about the files of the run: `tree`, `change`, `change_end` or `file`."""
        if message.kind == "tree":
            await self._handle_tree(message)
        elif message.kind == "change":
            await self._handle_change(message)
        elif message.kind == "change_end":
            self.last_change = message.text("mark")
        else:
            await self._handle_file(message)

    async def _handle_tree(self, message: CarrierMessage) -> None:
        """Handle a part of the description of a tree: of a directory of the run, or of a single file in one.

        With the last part, create its directories and links, and note the files that are missing.
        """
        target = message.text("target")
        # Several single files of one directory, `target`, are described one by one: their entries add up.
        # A directory that is shared as a whole (`is_whole`) is described once on a connection; files of it
        # that are on disk and not in the description are removed.
        announced = self._announced.setdefault(target, {})
        for path, fields in message.mapping("entries").items():
            announced[trees.checked_path(path)] = trees.entry_from(fields)
        if not message.fields.get("is_last"):
            return
        needed = await asyncio.to_thread(
            self._trees.update_tree,
            target,
            announced,
            is_whole=bool(message.fields.get("is_whole")),
            is_writable=bool(message.fields.get("is_writable")),
        )
        self._missing |= {(target, path) for path in needed}

    async def request_missing_files(self, connection: CarrierConnection) -> None:
        """Request the missing files from the host, wait until all have arrived, and send `ready`."""
        by_target: dict[str, list[str]] = {}
        for target, path in sorted(self._missing):
            by_target.setdefault(target, []).append(path)
        for target, paths in by_target.items():
            for start in range(0, len(paths), ENTRIES_A_MESSAGE):
                await connection.send("need", target=target, paths=paths[start : start + ENTRIES_A_MESSAGE])
        while self._missing:
            self._file_arrived.clear()
            await self._file_arrived.wait()
        await connection.send("ready")

    async def _handle_change(self, message: CarrierMessage) -> None:
        """Apply to the local tree a change that the host has made in its tree.

        The changed files are added to the announced ones; their contents arrive later.
        """
        target = message.text("target")
        changed = changes_from(message)
        await asyncio.to_thread(self._trees.change, target, changed)
        self._announced.setdefault(target, {}).update(changed.put)

    async def _handle_file(self, message: CarrierMessage) -> None:
        """Store a part of a file; with the last part, move the file to its path in the tree.

        A file whose content is not as announced is dropped, because it has changed on the host, which sends
        it again.

        Raises:
            StaleFile: the content is not as announced, and the container still lacks the file, or it is in a
                tree to which the agent may write. The error ends the connection.
        """
        key = message.text("target"), message.text("path")
        is_last = bool(message.fields.get("is_last"))
        if key not in self._incoming and not is_last:
            self._incoming[key] = tempfile.TemporaryFile()  # noqa: SIM115  # closed with its last part
        if not is_last:
            await asyncio.to_thread(self._incoming[key].write, message.payload)
            return
        file = self._incoming.pop(key, None) or io.BytesIO()
        with file:
            try:
                await asyncio.to_thread(self._put, key, file, message.payload)
            except StaleFile:
                if key in self._missing or self._trees.is_writable(key[0]):
                    raise
                return  # it was changed on the host since it was announced, and is sent again next
        self._missing.discard(key)
        self._file_arrived.set()

    def _put(self, key: tuple[str, str], file: Any, last_part: bytes) -> None:
        """Write the last part of a file and put the file into place. Blocks: use a thread.

        `key` is its target and path. Raises `StaleFile` if the content is not as the host has announced.
        """
        file.write(last_part)
        file.seek(0)
        self._trees.put_file(*key, self._announced[key[0]][key[1]], file)
