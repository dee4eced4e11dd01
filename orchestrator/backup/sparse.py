"""Store files with holes in a backup: their data is read and stored, their holes are only recorded.

The format is version 1.0 of GNU tar's sparse files, which `tar` and Python's `tarfile` can unpack.
"""

from __future__ import annotations

import errno
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO

MOST_PIECES = 100_000
"""The largest number of pieces of a file; ordinary files have fewer."""
MOST_STORED_BYTES = 8 * 2**30 - 2**24
"""The largest size of the data: a larger one needs the extended header, which `tarfile` misreads.

It takes the size there for that of the file with its holes.
"""

DataParts = Sequence[tuple[int, int]]
"""The parts of a file that have data: offset and length, in order."""


def pieces(descriptor: int, status: os.stat_result) -> DataParts | None:
    """Return the offset and length of each part of an open file that has data, and is no hole.

    None for a file with more parts than `MOST_PIECES`. The whole file counts as data on a file system that
    does not report holes, and if it has `MOST_STORED_BYTES` of data or more. Afterwards the file is at its
    start.
    """
    whole_file = [(0, status.st_size)] if status.st_size else []
    # `st_blocks` counts pieces of 512 bytes: a file that takes all its size on the disk has no holes.
    if status.st_blocks * 512 >= status.st_size:
        return whole_file
    parts: list[tuple[int, int]] = []
    try:
        for piece in _data_parts(descriptor, status.st_size):
            parts.append(piece)
            if len(parts) > MOST_PIECES:
                return None
    except OSError:
        parts = whole_file
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
    data_bytes = sum(length for _, length in parts)
    # A file of more data is stored as an ordinary one, with its holes written as zeros.
    return parts if data_bytes < MOST_STORED_BYTES else whole_file


def has_holes(data: DataParts, size: int) -> bool:
    """Return whether a file of `size` bytes has holes: its parts with data are smaller than the file."""
    return sum(length for _, length in data) < size


def make_sparse(info: tarfile.TarInfo, number: int, data: DataParts, *, size: int) -> bytes:
    """Change the header `info` of a member to that of a sparse file, and return the bytes before its data.

    `number` is different for each sparse file of a backup. `data` has the offset and length of each part of
    the file that is stored, and `size` is the file's size with its holes.
    """
    # The number of parts, then the offset and length of each. The last part is empty, and its offset is the
    # file's size.
    table = [len(data) + 1, *(value for piece in data for value in piece), size, 0]
    head = "".join(f"{value}\n" for value in table).encode()
    head += b"\0" * (-len(head) % tarfile.BLOCKSIZE)  # filled up to a whole block
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": info.name,
        "GNU.sparse.realsize": str(size),
    }
    # A name that fits the short header, because one in the extended header would replace the file's name.
    info.name = f"GNUSparseFile.0/{number}"
    info.size = len(head) + sum(length for _, length in data)
    return head


def _data_parts(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and length of each part of an open file of `size` bytes that is no hole.

    Raises:
        OSError: the file system does not report holes.
    """
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole from here on
                return
            raise
        if start >= size:
            return
        end = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        yield start, end - start


class Pieces(io.RawIOBase):
    """Reads a file as its member of the archive: the head, then the pieces of the file that have data.

    It gives exactly as many bytes as the member's header says. If the file became shorter meanwhile, the
    missing bytes are zeros.
    """

    def __init__(self, file: BinaryIO, head: bytes, data: DataParts) -> None:
        """`head` is read first: the list of the pieces, as `make_sparse` returns it.

        For a file without holes `head` is empty. Then come the pieces of the open file, of which `data` has
        the offsets and lengths.
        """
        self._file = file
        self._head = head
        self._data = iter(data)
        self._unread_bytes = 0
        """Bytes of the present piece that were not read yet."""

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, fewer only at the end; all remaining bytes if `size` is negative."""
        data = bytearray(self._head[: None if size < 0 else size])
        self._head = self._head[len(data) :]
        while size < 0 or len(data) < size:
            if not self._unread_bytes:
                piece = next(self._data, None)
                if piece is None:
                    break
                offset, self._unread_bytes = piece
                self._file.seek(offset)
            wanted = self._unread_bytes if size < 0 else min(self._unread_bytes, size - len(data))
            # If the file became shorter meanwhile, zeros replace the missing bytes.
            data += self._file.read(wanted).ljust(wanted, b"\0")
            self._unread_bytes -= wanted
        return bytes(data)
