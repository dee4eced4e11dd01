"""Transcribe voice notes, one at a time, by a restricted program without network: `transcription_program`."""

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

from agent_runner.wire.processes import kill_and_wait
from orchestrator.channels.voice import transcription_program
from orchestrator.home.directory import Home

log = structlog.get_logger(__name__)

LIBRARY = "faster_whisper"
MODEL_FILES = ("model.bin", "config.json", "tokenizer.json")
"""Files that a model's folder must contain, beside a `vocabulary.*`, whose name varies."""
START_SECONDS = 60.0
"""Seconds that the program may take besides transcribing: it loads a model, maybe on a busy machine."""
MAX_CHARS = 8_000
MAX_OUTPUT_BYTES = 64 * 1024
"""Bytes that the program may print: 8,000 characters of JSON are 48,000 at most."""
ERRORS_LOGGED_BYTES = 500
"""Bytes of the program's last stderr output that are logged."""
MAX_WAITING = 10
"""Notes of one group that may wait for their turn at once."""
TOO_MANY_WAITING = f"{MAX_WAITING} others of this group were still to be written down"
FAILED = "writing down what it says took too long, or failed"
_INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
)
_HANGUL = re.compile("[가-힣]")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenText:
    """The result of transcribing a voice note: `text`, or in `failure` the reason, which ends a sentence."""

    text: str = ""
    failure: str | None = None
    language: str | None = None


def model_folder(home: Home, name: str) -> Path:
    """Return the folder in which the model called `name` is, or would be if it were installed."""
    return home.data / "voice" / name


def is_model(folder: Path) -> bool:
    """Return whether a folder contains the files of a model for transcribing. Blocks."""
    return all((folder / name).is_file() for name in MODEL_FILES)


def has_library() -> bool:
    """Return whether the transcribing library is installed: the optional extra `voice`."""
    return importlib.util.find_spec(LIBRARY) is not None


def language_of(texts: Iterable[str]) -> str | None:
    """Return the language in which people probably speak in a chat with these texts. Pure.

    It is `ko` if at least one letter of five is Korean, because Korean chats are full of Latin names and
    addresses. Otherwise it is None: the model has to detect the language.
    """
    text = "".join(texts)
    letters = len(_LETTER.findall(text))
    return "ko" if letters and len(_HANGUL.findall(text)) >= letters / 5 else None


class VoiceTranscriber:
    """Transcribes voice notes one after another.

    Next is a note of the group whose last note was begun the longest ago.
    """

    def __init__(self, model: Path, *, command: Sequence[str] | None = None) -> None:
        """`model` is a model's folder; `command` replaces the program `transcription_program`."""
        self._model = model
        self._command = command or (sys.executable, "-m", transcription_program.__name__)
        self._is_transcribing = False
        """Whether a note is being transcribed, so that another one has to wait."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Notes that wait to be transcribed, by group; a note's future is done when it may begin."""
        self._begun_count = 0
        """The number of notes that were begun, by which `_last_begun` orders the groups."""
        self._last_begun: dict[str, int] = {}
        """The number of each group's last note that was begun."""

    def seconds_for(self, seconds: int) -> float:
        """Return how many seconds transcribing a voice note may take once it has begun.

        `seconds` is the playing time of the note.
        """
        return START_SECONDS + min(seconds, transcription_program.MAX_SECONDS)

    async def transcribe(
        self, file: Path, *, seconds: int, language: str | None = None, group: str = ""
    ) -> SpokenText:
        """Wait for earlier voice notes, then return the text spoken in `file`, or why there is none.

        Args:
            file: the sound file.
            seconds: its playing time, as its sender claims.
            language: the spoken language, such as `de`; None to detect it.
            group: the group that the file belongs to. Of one group, at most `MAX_WAITING` files may wait.
        """
        if seconds > transcription_program.MAX_SECONDS:
            return SpokenText(failure=transcription_program.TOO_LONG)
        if len(self._waiting.get(group, ())) >= MAX_WAITING:
            log.warning("voice.too_many", group=group)
            return SpokenText(failure=TOO_MANY_WAITING)
        async with self._one_at_a_time(group):
            try:
                async with asyncio.timeout(self.seconds_for(seconds)):
                    return await self._run_program(file, language)
            except TimeoutError:
                log.warning("voice.too_slow", seconds=seconds)
                return SpokenText(failure=FAILED)

    @asynccontextmanager
    async def _one_at_a_time(self, group: str) -> AsyncIterator[None]:
        """Wait until a voice note of the group may be transcribed; after the block, let the next begin."""
        if self._is_transcribing:
            may_begin = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(group, deque()).append(may_begin)
            try:
                await may_begin
            except asyncio.CancelledError:
                if may_begin.cancelled():
                    self._forget_waiting(group, may_begin)
                else:
                    # This note was allowed to begin just before it was cancelled: the next one may instead.
                    self._let_next_begin()
                raise
        self._is_transcribing = True
        self._begun_count += 1
        self._last_begun[group] = self._begun_count
        try:
            yield
        finally:
            self._let_next_begin()

    def _forget_waiting(self, group: str, may_begin: asyncio.Future[None]) -> None:
        """Remove a voice note of a group from those that wait; `may_begin` is its future."""
        waiting = self._waiting[group]
        waiting.remove(may_begin)
        if not waiting:
            del self._waiting[group]

    def _let_next_begin(self) -> None:
        """Let a note begin, if any waits: one of the group whose last note was begun the longest ago."""
        # A note that was cancelled in this moment still waits: it removes itself when its task runs next.
        next_notes = {
            group: future
            for group, waiting in self._waiting.items()
            if (future := next((each for each in waiting if not each.done()), None)) is not None
        }
        # If a note waits, this stays true, so that no note which comes just now begins before that one.
        self._is_transcribing = bool(next_notes)
        if next_notes:
            group = min(next_notes, key=lambda name: self._last_begun.get(name, 0))
            self._forget_waiting(group, next_notes[group])
            next_notes[group].set_result(None)

    async def _run_program(self, file: Path, language: str | None) -> SpokenText:
        """Run the transcribing program for a file, and return its result; cancellation kills the program.

        `language` is the spoken language; None to detect it.
        """
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
        errors = asyncio.create_task(_read_tail(process.stderr), name="voice-errors")
        try:
            output = await _read_bounded(process.stdout)
            if output is None:
                log.warning("voice.too_much_output", bytes=MAX_OUTPUT_BYTES)
                return SpokenText(failure=FAILED)
            code = await process.wait()
            return _parse_output(output, await errors, code)
        finally:
            # First, so that a second cancellation finds the program killed.
            await kill_and_wait(process)
            errors.cancel()
            await asyncio.gather(errors, return_exceptions=True)


async def _read_bounded(stream: asyncio.StreamReader) -> bytes | None:
    """Read the program's output to its end and return it.

    If it is more than `MAX_OUTPUT_BYTES`, return None and leave the rest unread.
    """
    output = b""
    while chunk := await stream.read(MAX_OUTPUT_BYTES):
        output += chunk
        if len(output) > MAX_OUTPUT_BYTES:
            return None
    return output


async def _read_tail(stream: asyncio.StreamReader) -> bytes:
    """Read a stream to its end, and return its last `ERRORS_LOGGED_BYTES`."""
    tail = b""
    while chunk := await stream.read(MAX_OUTPUT_BYTES):
        tail = (tail + chunk)[-ERRORS_LOGGED_BYTES:]
    return tail


def _environment() -> dict[str, str]:
    """Return the environment variables for the transcribing program."""
    # The program gets no secret and no proxy address. With more threads it would use all processors.
    inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    return inherited | {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}


def _parse_output(output: bytes, errors: bytes, code: int | None) -> SpokenText:
    """Return the transcription in the program's output, or a failure if that is not as expected.

    The program decodes files of strangers, so its output may be anything. `errors` is the end of its stderr
    and `code` its exit code, for the log.
    """
    try:
        result = json.loads(output.splitlines()[-1])
        text, failure, language = (result.get(key) for key in ("text", "failure", "language"))
    except (ValueError, IndexError, AttributeError, RecursionError):
        log.warning("voice.failed", code=code, stderr=errors.decode("utf-8", "replace"))
        return SpokenText(failure=FAILED)
    if result.get("warning"):
        log.warning("voice.not_isolated", missing=str(result["warning"])[:200])
    if not isinstance(text, str) or not text.strip():
        return SpokenText(failure=str(failure)[:200] if failure else FAILED)
    bounded_text = text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}… [cut]"
    return SpokenText(text=" ".join(bounded_text.split()), language=str(language)[:8] if language else None)
