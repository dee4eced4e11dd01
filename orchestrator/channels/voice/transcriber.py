"""Transcribe voice notes: a bounded program without network (`listen.py`) listens, to one file at a time."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from orchestrator.channels.voice import listen
from orchestrator.domain.home import Home

log = structlog.get_logger(__name__)

LIBRARY = "faster_whisper"
FILES = ("model.bin", "config.json", "tokenizer.json")
"""What a folder must hold to be a model; `vocabulary.*` has two names."""
START_SECONDS = 60.0
"""How long the program may take besides listening: it loads a model, on a machine that may be busy."""
MAX_CHARS = 8_000
NOT_NOW = "writing down what it says took too long, or failed"
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_HANGUL = re.compile("[가-힣]")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenText:
    """What a voice note says: either `text`, or why there is none in `failure`, which ends a sentence."""

    text: str = ""
    failure: str | None = None
    language: str | None = None


def model_folder(home: Home, name: str) -> Path:
    """Return where the model called `name` is, or would be."""
    return home.data / "voice" / name


def is_model(folder: Path) -> bool:
    """Return whether a folder holds a whole model. Blocks."""
    return all((folder / name).is_file() for name in FILES)


def has_library() -> bool:
    """Return whether the library that listens is installed: it is the optional extra `voice`."""
    return importlib.util.find_spec(LIBRARY) is not None


def language_of(texts: Iterable[str]) -> str | None:
    """Return the language to expect in a chat with these texts, or None where it has to be heard. Pure.

    One letter of five in Hangul makes a chat Korean: Korean chats are full of Latin names and addresses.
    """
    text = "".join(texts)
    letters = len(_LETTER.findall(text))
    return "ko" if letters and len(_HANGUL.findall(text)) >= letters / 5 else None


class VoiceTranscriber:
    """Transcribes files, one after another."""

    def __init__(self, model: Path, *, command: Sequence[str] | None = None) -> None:
        """`model` is a folder of a model; `command` starts the program in the place of `listen`."""
        self._model = model
        self._command = command or (sys.executable, "-m", listen.__name__)
        self._one_at_a_time = asyncio.Lock()

    def seconds_for(self, seconds: int) -> float:
        """Return how long transcribing a note of so many seconds may take, waiting for others included."""
        return START_SECONDS + min(seconds, listen.MAX_SECONDS)

    async def transcribe(self, file: Path, *, seconds: int, language: str | None = None) -> SpokenText:
        """Return what `file` says. `seconds` is how long it claims to be; whatever fails is a `failure`."""
        if seconds > listen.MAX_SECONDS:
            return SpokenText(failure=listen.TOO_LONG)
        try:
            async with asyncio.timeout(self.seconds_for(seconds)), self._one_at_a_time:
                return await self._listen(file, language)
        except TimeoutError:
            log.warning("voice.too_slow", seconds=seconds)
            return SpokenText(failure=NOT_NOW)

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
        try:
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return _parsed(output, errors, process.returncode)


def _environment() -> dict[str, str]:
    # No key, no address of a proxy: it needs none. Two threads, or it would take every processor there is.
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}


def _parsed(output: bytes, errors: bytes, code: int | None) -> SpokenText:
    """Return the transcript in what the program printed; a decoder that was taken over may print anything."""
    try:
        found = json.loads(output.splitlines()[-1])
        text, failure, language = (found.get(key) for key in ("text", "failure", "language"))
    except (ValueError, IndexError, AttributeError):
        log.warning("voice.failed", code=code, stderr=errors[-500:].decode("utf-8", "replace"))
        return SpokenText(failure=NOT_NOW)
    if found.get("warning"):
        log.warning("voice.not_isolated", reason=str(found["warning"])[:200])
    if not isinstance(text, str) or not text.strip():
        return SpokenText(failure=str(failure)[:200] if failure else NOT_NOW)
    cut = text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}… [cut]"
    return SpokenText(text=" ".join(cut.split()), language=str(language)[:8] if language else None)
