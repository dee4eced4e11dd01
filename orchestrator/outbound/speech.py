"""Read replies aloud: the owner's program speaks each, and the sound follows the text as a voice note.

The text is sent as usual and never waits; a reply that cannot be spoken stays a text only.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from agent_runner.wire.processes import kill_and_wait
from orchestrator.domain.values import Attachment, ChatJid, OutboxState, Outgoing
from orchestrator.groups import owner, settings
from orchestrator.groups.host_context import HostContext
from orchestrator.home.directory import Home
from orchestrator.outbound.format import for_people
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.groups import groups

log = structlog.get_logger(__name__)

FILE = "{file}"
"""Placeholder in the command for the file that the program writes; without it, it prints the sound."""
MAX_SECONDS = 60.0
MAX_BYTES = 8 * 1024 * 1024
MAX_CHARS = 2_000
"""Most characters of a text that is spoken: about two minutes of sound."""
MAX_FILE_BYTES = 128 * 1024 * 1024
"""Most bytes of a file that the program writes: espeak-ng makes shared memory of 64 MiB, which counts."""
# A command for each limit: dash, which is /bin/sh on Debian, takes one option at a time.
BOUNDED = (
    f'{{ ulimit -c 0; ulimit -v {4 * 1024**2}; ulimit -f {MAX_FILE_BYTES // 512}; }} 2>/dev/null; exec "$@"'
)
"""A shell command that limits memory and files, then runs the program in place of the shell.

Memory is limited to 4 GiB of address space, a file to `MAX_FILE_BYTES`, and there is no core dump.
"""
NOT_TO_BE_SPOKEN = "too long to be spoken, or without words"
RECENT_MS = 10 * 60_000
"""Milliseconds after which a sent text is no longer spoken: the host was down, and nobody waits for it."""
AT_ONCE = 2
"""Replies that are spoken at the same time."""
SWEEP_SECONDS = 20.0
VOICE_NOTE = "audio/ogg; codecs=opus"
TO_OPUS = (
    "-v",
    "error",
    "-i",
    "pipe:0",
    "-ac",
    "1",
    "-ar",
    "48000",
    "-c:a",
    "libopus",
    "-b:a",
    "24k",
    "-f",
    "ogg",
    "-",
)
"""Options with which ffmpeg converts any sound to a voice note."""
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
"""Variables of the environment that the program gets. Others may hold keys, such as the model's."""
_CODE = re.compile(r"```.*?(?:```|$)", re.DOTALL)
_ADDRESS = re.compile(r"\bhttps?://\S+")
_MARKS = re.compile(r"[*_~`#>|]+")
_MP3 = re.compile(rb"ID3|\xff[\xfa\xfb\xf2\xf3\xe2\xe3]")
"""The start of an MP3: a tag, or the head of a frame of MPEG 1, 2 or 2.5, with a checksum or without."""


class NotSpoken(Exception):
    """A text could not be spoken; the message says why, and how to fix it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A sound file and its media type."""

    body: bytes
    mime: str
    name: str


def spoken_words(text: str) -> str:
    """Return the words of a reply to read aloud, without code, addresses and formatting. Pure."""
    shown = _ADDRESS.sub("", _CODE.sub("", for_people(text)))
    return " ".join(_MARKS.sub("", shown).split())


def sound_of(body: bytes) -> Sound | None:
    """Return a sound with the media type and file name that its first bytes show. Pure.

    None if they are of no known type.
    """
    match body[:4]:
        case b"OggS" if b"OpusHead" in body[:100]:
            return Sound(body=body, mime=VOICE_NOTE, name="voice.ogg")
        case b"OggS":
            return Sound(body=body, mime="audio/ogg", name="voice.ogg")
        case b"RIFF" if body[8:12] == b"WAVE":
            return Sound(body=body, mime="audio/wav", name="voice.wav")
    # MP4 names its kind of file after four bytes.
    if body[4:8] == b"ftyp":
        return Sound(body=body, mime="audio/mp4", name="voice.m4a")
    if _MP3.match(body):
        return Sound(body=body, mime="audio/mpeg", name="voice.mp3")
    return None


class SpeechProgram:
    """The owner's program: it is started for each text, reads it on stdin, and prints or writes the sound."""

    def __init__(self, command: Sequence[str], *, seconds: float = MAX_SECONDS) -> None:
        """`command` is the command line, perhaps with `FILE` in it; `seconds` limits each run."""
        self._command = tuple(command)
        self._seconds = seconds

    async def speak(self, text: str) -> Sound:
        """Return the sound of a text, as a voice note if ffmpeg is installed.

        Raises `NotSpoken` if the program fails, takes too long, or makes a sound of no known type.
        """
        try:
            async with asyncio.timeout(self._seconds):
                sound = sound_of(await self._run_command(text.encode()))
                if sound is None:
                    raise NotSpoken("it made no sound that is known: it has to write OGG, WAV, MP3 or M4A")
                return await _as_voice_note(sound)
        except TimeoutError:
            raise NotSpoken(f"it took more than {self._seconds:.0f} seconds") from None

    async def _run_command(self, text: bytes) -> bytes:
        """Run the program with a text on stdin, and return the sound that it made.

        The sound comes from the program's stdout, or from the file whose path replaces `FILE` in the command.

        Raises `NotSpoken` if the program fails or makes no sound.
        """
        if not any(FILE in word for word in self._command):
            return await _run(self._command, text)
        with tempfile.TemporaryDirectory(prefix="andy-speech-") as folder:
            target = Path(folder) / "speech"
            await _run([word.replace(FILE, str(target)) for word in self._command], text)
            return await asyncio.to_thread(_read, target)


async def _as_voice_note(sound: Sound) -> Sound:
    """Return a sound converted to a voice note, or unchanged if it is one or there is no ffmpeg.

    Raises `NotSpoken` if ffmpeg fails.
    """
    ffmpeg = shutil.which("ffmpeg")
    if sound.mime == VOICE_NOTE or ffmpeg is None:
        return sound
    return sound_of(await _run([ffmpeg, *TO_OPUS], sound.body)) or sound


async def _run(command: Sequence[str], stdin: bytes) -> bytes:
    """Run a program that gets `stdin`, and return what it prints to stdout.

    The memory of the program and the files that it writes are limited. At the end, and when this is
    cancelled, it is killed with all processes that it has started.

    Raises:
        NotSpoken: it cannot be started, fails, or prints too much.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            BOUNDED,
            "sh",
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            # In a session of its own, so that the children that it starts can be killed with it.
            start_new_session=True,
        )
    except OSError as error:
        raise NotSpoken(f"'{command[0]}' cannot be started ({error.strerror})") from error
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.TaskGroup() as pipes:
            pipes.create_task(_feed(process.stdin, stdin), name="speech-text")
            printed = pipes.create_task(_read_pipe(process.stdout, MAX_BYTES), name="speech-sound")
            complaints = pipes.create_task(_read_pipe(process.stderr, MAX_BYTES), name="speech-complaints")
        code = await process.wait()
    finally:
        await kill_and_wait(process, with_group=True)
    _check_size(printed.result())
    if code != 0:
        complaint = " ".join(complaints.result().decode("utf-8", "replace").split())[-200:]
        raise NotSpoken(f"it ended with code {code}{': ' if complaint else ''}{complaint}")
    return printed.result()


def _check_size(sound: bytes) -> None:
    """Raise `NotSpoken` if a sound has more than `MAX_BYTES`: cut, it would end in the middle of a word."""
    if len(sound) > MAX_BYTES:
        raise NotSpoken(f"it made more than {MAX_BYTES // 1024**2} MiB")


async def _feed(pipe: asyncio.StreamWriter, content: bytes) -> None:
    """Write `content` to a program's stdin and close it; a program that has ended is no error."""
    with suppress(ConnectionError):  # the program may end without reading all of it
        pipe.write(content)
        await pipe.drain()
    pipe.close()
    with suppress(ConnectionError):
        await pipe.wait_closed()


async def _read_pipe(pipe: asyncio.StreamReader, limit: int) -> bytes:
    """Read a pipe to its end, and return its first bytes: one more than `limit` if there are more.

    The pipe is read to its end in any case, since a program blocks while its pipe is full.
    """
    data = bytearray()
    while chunk := await pipe.read(65_536):
        data += chunk[: limit + 1 - len(data)]
    return bytes(data)


def _read(path: Path) -> bytes:
    """Return the content of the file that the program wrote. Blocks.

    Raises `NotSpoken` if there is no such file, or if it is too large.
    """
    try:
        with path.open("rb") as file:
            sound = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotSpoken(f"it wrote no file ({error.strerror})") from error
    _check_size(sound)
    return sound


class SpokenReplies:
    """Follows what is sent, and adds a voice note to each reply in groups that want one."""

    def __init__(self, host: HostContext) -> None:
        """Set up with the owner's program, if the settings name one; without it, nothing is spoken."""
        words = shlex.split(host.settings.andy_speech_command)
        self._host = host
        self._program = SpeechProgram(words) if words else None
        self._busy: set[ChatJid] = set()
        """Chats whose replies a task is speaking, one after another."""
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Add voice notes to sent replies until cancelled; without a program, only wait.

        Each chat has a task of its own, so that chats do not wait for each other.
        """
        if self._program is None:
            await asyncio.Event().wait()
            return
        with self._host.bus.listening() as events:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    for chat in {reply.chat_jid for reply in await self._unspoken()} - self._busy:
                        self._busy.add(chat)
                        tasks.create_task(self._speak_replies(self._program, chat), name=f"speech:{chat}")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(SWEEP_SECONDS):
                            while (await events.get()).kind != "message.sent":
                                pass

    async def _unspoken(self) -> list[Outgoing]:
        """Return the replies of the last `RECENT_MS` that are still to be spoken."""
        since_ms = self._host.clock.now_ms() - RECENT_MS
        return await self._host.reader.read(partial(_unspoken, since_ms=since_ms))

    async def _speak_replies(self, program: SpeechProgram, chat: ChatJid) -> None:
        """Have a chat's waiting replies spoken by `program`, one after another, until none is left.

        Errors are logged.
        """
        try:
            while waiting_replies := [reply for reply in await self._unspoken() if reply.chat_jid == chat]:
                async with self._slots:
                    await self._speak(program, waiting_replies[0])
        except Exception:
            # The reply stays unspoken until the next look; with a full disk, an earlier retry would fail
            # again.
            log.exception("speech.failed", chat=chat)
        finally:
            self._busy.discard(chat)

    async def _speak(self, program: SpeechProgram, outgoing: Outgoing) -> None:
        """Have a reply spoken by `program` and queue its voice note, or record that it stays a text only."""
        words = spoken_words(outgoing.text)
        if not 0 < len(words) <= MAX_CHARS:
            await self._leave_unspoken(outgoing, None)
            return
        try:
            sound = await program.speak(words)
        except NotSpoken as error:
            await self._leave_unspoken(outgoing, str(error))
        else:
            await self._queue(outgoing, sound)

    async def _leave_unspoken(self, outgoing: Outgoing, why: str | None) -> None:
        """Record that a reply stays a text.

        `why` says what failed, and the owner is notified of it once; None if the reply is only too long or
        wordless.
        """
        now_ms = self._host.clock.now_ms()
        async with self._host.database.transaction() as tx:
            # The row is what marks a reply as done: without it, the next look would try to speak it again.
            voice = await outbox.add_voice(tx, outgoing, None, now_ms=now_ms)
            await outbox.finish(
                tx, voice.id, OutboxState.SKIPPED, now_ms=now_ms, error=why or NOT_TO_BE_SPOKEN
            )
            if why:
                text = (
                    f"⚠️ Replies are not spoken, for {why}. Look at ANDY_SPEECH_COMMAND; the texts are sent."
                )
                await owner.notify(tx, text, about="speech", now_ms=now_ms)
        if why:
            log.warning("speech.not_spoken", outgoing=outgoing.id, reason=why)
            self._host.wakeups.outbox.set()

    async def _queue(self, outgoing: Outgoing, sound: Sound) -> None:
        """Store the sound of a reply as a file, and queue it in the outbox to be sent as a voice note.

        It is queued once, even if the host dies meanwhile: the row of the outbox is added first, and waits
        until the file is stored.
        """
        file = file_of(self._host.home, outgoing, sound)
        now_ms = self._host.clock.now_ms()
        voice = await self._host.database.write(
            lambda tx: outbox.add_voice(tx, outgoing, file, now_ms=now_ms)
        )
        await asyncio.to_thread(_write, file.path, sound.body)
        await self._host.database.write(lambda tx: outbox.release_voice(tx, voice.id, now_ms=now_ms))
        self._host.wakeups.outbox.set()


async def _unspoken(tx: Tx, *, since_ms: int) -> list[Outgoing]:
    """Return the replies since `since_ms` (epoch milliseconds) that are still to be spoken.

    Only groups count whose settings want replies to be spoken.
    """
    # A group that just switched speech on does not want to hear replies that it has read already.
    wanted_since = {
        group.folder: await group_changes.switched_on_ms(tx, group.folder, "speech")
        for group in await groups.every(tx)
        if settings.of(group).speech
    }
    replies = await outbox.unspoken(tx, since_ms=since_ms) if wanted_since else []
    return [
        reply
        for reply in replies
        if reply.folder in wanted_since and reply.created_ms >= wanted_since[reply.folder]
    ]


def file_of(home: Home, outgoing: Outgoing, sound: Sound) -> Attachment:
    """Return the file in which the sound of a reply waits to be sent, with its name and type. Pure.

    The path depends on the reply alone, so that a second attempt writes the same file.
    """
    digest = hashlib.sha256(f"speech:{outgoing.id}".encode()).hexdigest()[:24]
    return Attachment(path=home.data / "outgoing" / f"out-{digest}", name=sound.name, mime=sound.mime)


def _write(path: Path, body: bytes) -> None:
    """Write `body` to a file that only this user may read, whole or not at all. Blocks. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.partial")
    unfinished.write_bytes(body)
    unfinished.chmod(0o600)
    unfinished.replace(path)
