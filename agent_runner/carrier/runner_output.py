"""Store the output of a run: all of stdout, and the end of stderr."""

from __future__ import annotations

import os
import tempfile

from agent_runner.wire import trees

MAX_OUTPUT_BYTES = 256 * 1024 * 1024
"""Most bytes of stdout of one run. They are stored to the run's end: a restarted host reads them again."""
MAX_ERROR_BYTES = 64 * 1024
"""Most bytes of stderr that wait for a connection; of more, only the last are stored."""
CHUNK_BYTES = trees.CHUNK_BYTES


class RunnerOutput:
    """The bytes that the runner wrote: all of stdout, and the end of stderr."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of stdout so far."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._errors = bytearray()

    def add(self, data: bytes) -> bool:
        """Append to stdout; return False, and add nothing, if it would exceed `MAX_OUTPUT_BYTES`."""
        if self.size + len(data) > MAX_OUTPUT_BYTES:
            return False
        # Not in a thread: the write goes to the page cache, and a thread for each line takes longer.
        os.pwrite(self._file.fileno(), data, self.size)
        self.size += len(data)
        return True

    def read(self, at: int) -> bytes:
        """Return up to `CHUNK_BYTES` of stdout from the offset `at` on; empty at the end."""
        return os.pread(self._file.fileno(), CHUNK_BYTES, at)  # from the page cache, as above

    def add_errors(self, data: bytes) -> None:
        """Append to stderr; only the last `MAX_ERROR_BYTES` are stored."""
        self._errors += data
        del self._errors[:-MAX_ERROR_BYTES]

    def take_errors(self) -> bytes:
        """Return the bytes of stderr since the last call, at most the last `MAX_ERROR_BYTES`."""
        errors, self._errors = bytes(self._errors), bytearray()
        return errors

    def close(self) -> None:
        """Close the temporary file, which deletes it."""
        self._file.close()
