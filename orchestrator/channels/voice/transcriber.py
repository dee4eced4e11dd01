"""Transcribe voice notes with a restricted program without network (`listen.py`), one file at a time."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from orchestrator.channels.voice import listen
from orchestrator.domain.home import Home

log = structlog.get_logger(__name__)

LIBRARY = "faster_whisper"
FILES = ("model.bin", "config.json", "tokenizer.json")
"""Files that a model's folder must contain, beside a `vocabulary.*`, whose name varies."""
START_SECONDS = 60.0
"""Seconds that the program may take besides listening: it loads a model, maybe on a busy machine."""
MAX_CHARS = 8_000
MAX_OUTPUT_BYTES = 64 * 1024
"""Bytes that the program may print: 8,000 characters of JSON are 48,000 at most."""
ERRORS_LOGGED_BYTES = 500
"""Bytes of the program's last stderr output that are logged."""
MAX_WAITING = 10
"""Notes of one group that may wait for their turn at once."""
TOO_MANY = f"{MAX_WAITING} others of this group were still to be written down"
NOT_NOW = "writing down what it says took too long, or failed"
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_HANGUL = re.compile("[가-힣]")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenText:
    """The result of transcribing a voice note: `text`, or in `failure` the reason, which ends a sentence."""

    text: str = ""
    failure: str | None = None
    language: str | None = None


def model_folder(home: Home, name: str) -> Path:
    """Return where the model called `name` is, or would be."""
    return home.data / "voice" / name


def is_model(folder: Path) -> bool:
    """Return whether a folder contains a whole model. Blocks."""
    return all((folder / name).is_file() for name in FILES)


def has_library() -> bool:
    """Return whether the transcribing library is installed: the optional extra `voice`."""
    return importlib.util.find_spec(LIBRARY) is not None


def language_of(texts: Iterable[str]) -> str | None:
    """Return the language to expect in a chat with these texts, or None to detect it. Pure.

    One letter of five in Hangul makes a chat Korean: Korean chats are full of Latin names and addresses.
    """
    text = "".join(texts)
    letters = len(_LETTER.findall(text))
    return "ko" if letters and len(_HANGUL.findall(text)) >= letters / 5 else None


class VoiceTranscriber:
    """Transcribes files one after another: the next is of the group that has waited
    longest since its last one.
    """

    def __init__(self, model: Path, *, command: Sequence[str] | None = None) -> None:
        """`model` is a model's folder; `command` replaces the program `listen`."""
        self._model = model
        self._command = command or (sys.executable, "-m", listen.__name__)
        self._is_listening = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Notes that wait for their turn, by group."""
        self._turns = 0
        self._last_turn: dict[str, int] = {}
        """The number of the last turn that each group had."""

    def seconds_for(self, seconds: int) -> float:
        """Return how many seconds transcribing a note of this length may take, from its start."""
        return START_SECONDS + min(seconds, listen.MAX_SECONDS)

    async def transcribe(
        self, file: Path, *, seconds: int, language: str | None = None, group: str = ""
    ) -> SpokenText:
        """Return the transcription of `file`. `seconds` is its claimed length; every error is a `failure`."""
        if seconds > listen.MAX_SECONDS:
            return SpokenText(failure=listen.TOO_LONG)
        if len(self._waiting.get(group, ())) >= MAX_WAITING:
            log.warning("voice.too_many", group=group)
            return SpokenText(failure=TOO_MANY)
        async with self._turn(group):
            try:
                async with asyncio.timeout(self.seconds_for(seconds)):
                    return await self._listen(file, language)
            except TimeoutError:
                log.warning("voice.too_slow", seconds=seconds)
                return SpokenText(failure=NOT_NOW)

    @asynccontextmanager
    async def _turn(self, group: str) -> AsyncIterator[None]:
        """Wait until nothing else is transcribed and it is this group's turn."""
        if self._is_listening:
            mine = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(group, deque()).append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.cancelled():
                    self._forget(group, mine)
                else:  # the turn had come at the same moment
                    self._pass_on()
                raise
        self._is_listening = True
        self._turns += 1
        self._last_turn[group] = self._turns
        try:
            yield
        finally:
            self._pass_on()

    def _forget(self, group: str, one: asyncio.Future[None]) -> None:
        waiting = self._waiting[group]
        waiting.remove(one)
        if not waiting:
            del self._waiting[group]

    def _pass_on(self) -> None:
        """Give the turn to the group that has waited longest, if any."""
        self._is_listening = bool(self._waiting)
        if self._waiting:
            group = min(self._waiting, key=lambda one: self._last_turn.get(one, 0))
            following = self._waiting[group][0]
            self._forget(group, following)
            following.set_result(None)

    async def _listen(self, file: Path, language: str | None) -> SpokenText:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            str(self._model),
            str(file),
            *([language] if language else []),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        assert process.stdout is not None and process.stderr is not None  # noqa: PT018
        errors = asyncio.create_task(_tail(process.stderr), name="voice-errors")
        try:
            output = await _bounded(process.stdout)
            if output is None:
                log.warning("voice.too_much_output", bytes=MAX_OUTPUT_BYTES)
                return SpokenText(failure=NOT_NOW)
            code = await process.wait()
            return _parsed(output, await errors, code)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            errors.cancel()


async def _bounded(stream: asyncio.StreamReader) -> bytes | None:
    """Return all output, or None if it is more than the program may print."""
    found = b""
    while some := await stream.read(MAX_OUTPUT_BYTES):
        found += some
        if len(found) > MAX_OUTPUT_BYTES:
            return None
    return found


async def _tail(stream: asyncio.StreamReader) -> bytes:
    """Read to the end and return the last bytes."""
    tail = b""
    while some := await stream.read(MAX_OUTPUT_BYTES):
        tail = (tail + some)[-ERRORS_LOGGED_BYTES:]
    return tail


def _environment() -> dict[str, str]:
    # It needs no key and no proxy address, so it gets none. Two threads, or it would use all processors.
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return passed_on | {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}


def _parsed(output: bytes, errors: bytes, code: int | None) -> SpokenText:
    """Return the transcription in the program's output; a compromised decoder may print anything."""
    try:
        found = json.loads(output.splitlines()[-1])
        text, failure, language = (found.get(key) for key in ("text", "failure", "language"))
    except (ValueError, IndexError, AttributeError, RecursionError):
        log.warning("voice.failed", code=code, stderr=errors.decode("utf-8", "replace"))
        return SpokenText(failure=NOT_NOW)
    if found.get("warning"):
        log.warning("voice.not_isolated", missing=str(found["warning"])[:200])
    if not isinstance(text, str) or not text.strip():
        return SpokenText(failure=str(failure)[:200] if failure else NOT_NOW)
    cut = text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}… [cut]"
    return SpokenText(text=" ".join(cut.split()), language=str(language)[:8] if language else None)
