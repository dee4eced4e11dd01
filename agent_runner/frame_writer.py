"""Writes numbered frames to the real stdout, the runner's only output."""

from __future__ import annotations

import os
import queue
import threading
from typing import Any

from agent_runner.wire.frames import Frame, encode_frame


class FrameWriter:
    """Numbers frames from 1 without a gap and writes them in order from a thread of its own.

    So a reader that pauses delays neither the agent nor the heartbeat. Once nobody reads any more, frames are
    dropped and `is_broken` is set.
    """

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is an open descriptor of the real stdout."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._last_number = 0
        self._queued: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.is_broken = False
        # A daemon: a host that never reads must not keep the process alive.
        self._thread = threading.Thread(target=self._write_all, name="outlet", daemon=True)
        self._thread.start()

    def put(self, frame: type[Frame], **fields: Any) -> None:
        """Queue a frame of this class with the next number and these fields. Never blocks.

        Raises `ValidationError` for fields that no such frame can have; the number is not used up then.
        """
        with self._lock:
            # Counted and queued under one lock, so that the frames of several threads are written in their
            # order.
            data = encode_frame(frame(n=self._last_number + 1, **fields))
            self._last_number += 1
            self._queued.put(data)

    def finish(self, seconds: float | None = None) -> None:
        """Block until all frames are written, at most `seconds`; None for no limit.

        No frame may be queued afterwards.
        """
        self._queued.put(None)
        self._thread.join(seconds)

    def _write_all(self) -> None:
        """Write the queued frames until `finish` is called. Runs in a thread of its own."""
        while (data := self._queued.get()) is not None:  # None is queued by `finish`
            if not self.is_broken:
                self._write(data)

    def _write(self, data: bytes) -> None:
        """Write all bytes; set `is_broken` if nobody reads any more. Blocks."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self.is_broken = True
