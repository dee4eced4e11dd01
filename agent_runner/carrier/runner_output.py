"""The output of a run: stdout from its first byte on, and the end of stderr."""

from __future__ import annotations

import os
import tempfile

from agent_runner.wire import trees

MAX_OUTPUT_BYTES = 256 * 1024 * 1024
"""Bytes of stdout that one run may have. They are stored to the run's end, for a host that starts anew."""
MAX_ERROR_BYTES = 64 * 1024
"""Bytes of stderr that wait for a connection; of more, the last."""
CHUNK_BYTES = trees.CHUNK_BYTES


class RunnerOutput:
    """The bytes that the runner wrote. Of stdout nothing is dropped."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of stdout so far."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._errors = bytearray()

    def add(self, data: bytes) -> bool:
        """Append to stdout; return False where that is more than a run may say."""
        if self.size + len(data) > MAX_OUTPUT_BYTES:
            return False
        os.pwrite(self._file.fileno(), data, self.size)  # to memory: a thread for each line takes longer
        self.size += len(data)
        return True

    def read(self, at: int) -> bytes:
        """Return the next bytes of stdout from an offset on; none at its end."""
        return os.pread(self._file.fileno(), CHUNK_BYTES, at)  # of memory, as above

    def add_errors(self, data: bytes) -> None:
        """Append to stderr."""
        self._errors += data
        del self._errors[:-MAX_ERROR_BYTES]

    def take_errors(self) -> bytes:
        """Return what came on stderr since the last time."""
        errors, self._errors = bytes(self._errors), bytearray()
        return errors

    def close(self) -> None:
        """Close the file, whose bytes are gone then."""
        self._file.close()
