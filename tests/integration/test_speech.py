"""Replies that are read aloud: by a real synthesizer, on a real database, with a scripted messenger."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.groups import changes
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.outbound import speech
from orchestrator.outbound.speech import NotSpoken, Sound, SpeechProgram, SpokenReplies, file_of, spoken_words
from orchestrator.store.conversation import outbox
from tests.doubles.channel import ScriptedChannel, Shown
from tests.support.host_contexts import host_context
from tests.support.store_harness import StoreHarness
from tests.support.until import until

A_NOTE = r"cat >/dev/null; printf 'OggS%96s' OpusHead"
"""A shell's line that makes what passes for a voice note."""


@asynccontextmanager
async def speaking(store_harness: StoreHarness, root: Path, command: str) -> AsyncIterator[ScriptedChannel]:
    """A host that sends to a messenger, and speaks with `command`."""
    host = host_context(store_harness, root, Settings(tz="Asia/Seoul", andy_speech_command=command))
    channel = ScriptedChannel()
    async with store_harness.delivering(channel), asyncio.TaskGroup() as tasks:
        speech = tasks.create_task(SpokenReplies(host).run(), name="speech")
        yield channel
        speech.cancel()


async def answered(store_harness: StoreHarness, text: str, folder: str = "family") -> None:
    await store_harness.hear("@Andy well?", folder)
    await store_harness.answer(text, folder=folder)
    store_harness.wakeups.outbox.set()


def notes(channel: ScriptedChannel) -> list[Shown]:
    return [one for one in channel.shown if one.file is not None]


async def voices(store_harness: StoreHarness) -> list[tuple[str, str | None]]:
    rows = await store_harness.rows(
        "SELECT state, error FROM outbox WHERE dedupe_key LIKE 'speech:%' ORDER BY id"
    )
    return [(row["state"], row["error"]) for row in rows]


@pytest.mark.parametrize("command", ["flite -o {file}", "espeak-ng --stdin --stdout"])
async def test_a_reply_is_followed_by_its_sound_where_the_group_wants_one(
    store_harness: StoreHarness, tmp_path: Path, command: str
) -> None:
    if shutil.which(command.split(maxsplit=1)[0]) is None:
        pytest.skip(f"apt-get install {command.split(maxsplit=1)[0]}")
    await store_harness.add_group("family", container_config={"speech": True})
    await store_harness.add_group("work")
    async with speaking(store_harness, tmp_path, command) as channel:
        await answered(store_harness, "It is nine o'clock.", "work")
        await answered(store_harness, "It is **nine** o'clock.")
        await until(lambda: notes(channel), "the sound")
        await answered(store_harness, "And now it is ten.")
        await until(lambda: len(notes(channel)) == 2, "the second sound")
    of_family = [one for one in channel.shown if one.jid == "local:family"]
    assert [(one.text, one.file is not None) for one in of_family] == [
        ("It is **nine** o'clock.", False),
        ("", True),
        ("And now it is ten.", False),
        ("", True),
    ]
    sound = of_family[1].file
    assert sound is not None
    assert sound[:4] == (b"OggS" if shutil.which("ffmpeg") else b"RIFF")
    assert len(sound) > 1000
    assert [one.text for one in channel.shown if one.jid == "local:work"] == ["It is nine o'clock."]
    names = [path.name for path in (tmp_path / "data" / "outgoing").iterdir()]
    assert len(names) == len([name for name in names if name.startswith("out-")]) == 2, "nothing half written"


async def test_a_program_that_fails_costs_no_text_and_the_owner_is_told_once(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    await store_harness.add_group("main", is_main=True)
    await store_harness.add_group("family", container_config={"speech": True})
    async with speaking(store_harness, tmp_path, "sh -c 'echo no voice here >&2; exit 3'") as channel:
        await answered(store_harness, "One.")
        await until(lambda: any(one.jid == "local:main" for one in channel.shown), "the owner is told")
        await answered(store_harness, "Two.")
        await until_voices(store_harness, 2)
    assert [one.text for one in channel.shown if one.jid == "local:family"] == ["One.", "Two."]
    (told,) = [one.text for one in channel.shown if one.jid == "local:main"]
    assert "it ended with code 3: no voice here. Look at ANDY_SPEECH_COMMAND" in told
    assert await voices(store_harness) == [("skipped", "it ended with code 3: no voice here")] * 2


async def test_a_group_whose_program_hangs_holds_no_other_up(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    for folder in ("family", "work"):
        await store_harness.add_group(folder, container_config={"speech": True})
    program = tmp_path / "program"
    program.write_text(
        f"case $(cat) in Slow.) touch begun; until [ -e go ]; do sleep 0.02; done;; esac; {A_NOTE}"
    )
    async with speaking(store_harness, tmp_path, f"sh -c 'cd {tmp_path}; . ./program'") as channel:
        await answered(store_harness, "Slow.")
        await until((tmp_path / "begun").exists, "the slow one has begun")
        await answered(store_harness, "Slow, and its text is not held up.")
        await answered(store_harness, "Quick.", "work")
        await until(lambda: notes(channel), "the other's sound")
        assert [one.jid for one in notes(channel)] == ["local:work"]
        await until(lambda: len([one for one in channel.shown if one.file is None]) == 3, "all texts")
        (tmp_path / "go").touch()
        await until(lambda: len(notes(channel)) == 3, "the sounds that were waited for")


async def test_a_sound_is_sent_once_by_the_host_after_one_that_died(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    await store_harness.add_group("family", container_config={"speech": True})
    await answered(store_harness, "One.")
    await store_harness.deliver_all()
    (spoken,) = await unspoken(store_harness)
    lost = file_of(Home(tmp_path), spoken, Sound(body=b"", mime=speech.VOICE_NOTE, name="voice.ogg"))
    async with store_harness.database.transaction() as tx:
        await outbox.add_voice(tx, spoken, lost, now_ms=store_harness.clock.now_ms())
    async with speaking(store_harness, tmp_path, f'sh -c "{A_NOTE}"') as channel:
        await until(lambda: notes(channel), "the sound")
    async with speaking(store_harness, tmp_path, f'sh -c "{A_NOTE}"') as later:
        await answered(store_harness, "Two.")
        await until(lambda: notes(later), "the sound of the next")
    assert len(notes(channel) + notes(later)) == 2
    assert await voices(store_harness) == [("sent", None)] * 2


async def test_a_group_that_switches_speech_on_does_not_hear_what_it_has_read(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    await store_harness.add_group("family")
    await answered(store_harness, "Read.")
    await store_harness.deliver_all()
    store_harness.clock.pass_ms(1)
    for is_on in (True, False, True):
        async with store_harness.database.transaction() as tx:
            now_ms = store_harness.clock.now_ms()
            await changes.configure(tx, "family", {"speech": is_on}, by="test", now_ms=now_ms)
        store_harness.clock.pass_ms(1)
    async with speaking(store_harness, tmp_path, f'sh -c "{A_NOTE}"') as channel:
        await answered(store_harness, "Heard.")
        await until(lambda: notes(channel), "the sound of the new reply")
    spoken = await store_harness.rows(
        """
        SELECT reply.text FROM outbox AS voice JOIN outbox AS reply
        ON voice.dedupe_key = 'speech:' || reply.id
        """
    )
    assert [row["text"] for row in spoken] == ["Heard."]


async def test_what_is_old_long_or_without_words_stays_a_text(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    await store_harness.add_group("family", container_config={"speech": True})
    await answered(store_harness, "Old.")
    await store_harness.deliver_all()
    store_harness.clock.pass_ms(speech.RECENT_MS + 1)
    async with speaking(store_harness, tmp_path, f'sh -c "{A_NOTE}"') as channel:
        await answered(store_harness, "long " * speech.MAX_CHARS)
        await answered(store_harness, "```\nx = 1\n```")
        await answered(store_harness, "Said.")
        await until(lambda: notes(channel), "the one that is spoken")
    assert await voices(store_harness) == [
        ("skipped", speech.NOT_TO_BE_SPOKEN),
        ("skipped", speech.NOT_TO_BE_SPOKEN),
        ("sent", None),
    ]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["sleep", "600"], "it took more than 1 seconds"),
        (["sh", "-c", "sleep 600 & exec cat"], "it took more than 1 seconds|no sound that is known"),
        (["sh", "-c", "yes | head -c 9000000"], "it made more than 8 MiB"),
        (["cat"], "it made no sound that is known"),
        (["no-such-program"], "not found"),
        (["sh", "-c", "true {file}"], "it wrote no file"),
        (["sh", "-c", "(printf RIFF; yes | head -c 9000000) > {file}"], "it made more than 8 MiB"),
    ],
)
async def test_a_program_is_bounded_and_says_what_is_wrong(command: list[str], words: str) -> None:
    seconds = 1.0 if "it took" in words else speech.MAX_SECONDS
    with pytest.raises(NotSpoken, match=words):
        await SpeechProgram(command, seconds=seconds).speak("hello")


@pytest.mark.parametrize(
    ("first", "mime"),
    [
        (b"\xff\xfb\x90\x00", "audio/mpeg"),
        (b"\xff\xfa\x90\x00", "audio/mpeg"),  # with a checksum
        (b"\xff\xf2\x90\x00", "audio/mpeg"),
        (b"\xff\xe3\x18\xc4", "audio/mpeg"),  # MPEG 2.5: 8 to 12 kHz
        (b"ID3\x04", "audio/mpeg"),
        (b"RIFF\x08\x00\x00\x00WAVE", "audio/wav"),
        (b"RIFF\x08\x00\x00\x00WEBP", None),
        (b"RIFF\x08\x00\x00\x00AVI ", None),
        (b"\xff\xfeh\x00", None),  # text in UTF-16
        (b"\xff\xd8\xff\xe0", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_a_sound_is_known_by_its_first_bytes(first: bytes, mime: str | None) -> None:
    sound = speech.sound_of(first + bytes(400) if len(first) > 1 else first)
    assert (sound and sound.mime) == mime


async def test_a_program_is_given_the_text_and_no_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    line = f"env > {tmp_path}/env; cat > {tmp_path}/text; printf 'RIFF....WAVE'"
    sound = await SpeechProgram(["sh", "-c", line]).speak("안녕")
    assert (sound.mime, sound.name) == ("audio/wav", "voice.wav")
    assert (tmp_path / "text").read_text() == "안녕"
    assert "sk-ant-secret" not in (tmp_path / "env").read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("**Milk** and _bread_", "Milk and bread"),
        ("See https://example.org/a?b=c for it", "See for it"),
        ("Run:\n```sh\nrm -rf /\n```\nDone.", "Run: Done."),
        ("<internal>not this</internal>but this", "but this"),
        ("```never closed", ""),
    ],
)
def test_what_is_read_aloud_is_words(text: str, words: str) -> None:
    assert spoken_words(text) == words


async def until_voices(store_harness: StoreHarness, count: int) -> None:
    async def are_there() -> bool:
        return len(await voices(store_harness)) >= count

    await until(are_there, f"{count} replies are judged")


async def unspoken(store_harness: StoreHarness) -> list[outbox.Outgoing]:
    async with store_harness.database.reading() as tx:
        return await outbox.unspoken(tx, since_ms=0)


async def test_the_memory_of_the_program_and_its_files_are_limited() -> None:
    printed = await speech._run(["/bin/sh", "-c", "ulimit -c; ulimit -v; ulimit -f"], b"")
    assert printed.split() == [b"0", b"%d" % (4 * 1024**2), b"%d" % (speech.MAX_FILE_BYTES // 512)]
