"""Voice notes become text before it is judged whether they ask for something.

The channel and the intake are real, the phone is scripted; a program that prints
what the file holds stands in for the one that listens.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from orchestrator.channels.voice import transcriber, transcription_program
from orchestrator.channels.voice.transcriber import VoiceTranscriber
from orchestrator.groups import registration
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_phone import Phone
from tests.support.until import until
from tests.support.whatsapp_home import WhatsAppHome, has_file, living

PATH = "attachments/20260528-2026-voice_note.ogg"
LISTENER = Path(__file__).parents[2] / "processes" / "voice_listener.py"


@pytest.fixture
async def harness(
    phone: Phone, build: Callable[..., WhatsAppHome], tmp_path: Path
) -> AsyncIterator[WhatsAppHome]:
    model = tmp_path / "model"
    model.mkdir()
    phone.pair()
    voice = VoiceTranscriber(model, command=(sys.executable, str(LISTENER)))
    async with living(build(voice=voice)) as opened:
        await opened.until_state("connected")
        yield opened


async def say(
    harness: WhatsAppHome, phone: Phone, spoken: str | bytes, *, message_id: str = "3A1", seconds: int = 9
) -> str:
    """Send a voice note; return its text as it is stored when its file has come."""
    body = spoken if isinstance(spoken, bytes) else json.dumps({"text": spoken, "language": "en"}).encode()
    phone.files[message_id.encode()] = body
    part = e2e.AudioMessage(
        mediaKey=message_id.encode(), directPath="/v", mimetype="audio/ogg", PTT=True, seconds=seconds
    )
    phone.write(wa.heard(Message(audioMessage=part), message_id=message_id))
    await until(lambda: has_file(harness, message_id), "the file")
    (row,) = await harness.rows("SELECT content FROM messages WHERE id = ?", message_id)
    return str(row["content"])


async def outcome(harness: WhatsAppHome, message_id: str = "3A1") -> tuple[str | None, bool]:
    """Return why a message is ignored, or None, and whether it asks for something in a queued turn."""
    (row,) = await harness.rows(
        """
        SELECT ignored_reason, is_request AND EXISTS (
            SELECT 1 FROM turns t WHERE t.id = turn_id AND t.state = 'queued'
                AND messages.seq BETWEEN t.first_seq AND t.last_seq) AS asks
        FROM messages WHERE id = ?
        """,
        message_id,
    )
    return row["ignored_reason"], bool(row["asks"])


async def test_a_note_that_calls_by_name_is_a_request(harness: WhatsAppHome, phone: Phone) -> None:
    text = await say(harness, phone, "Hey Andy, add milk to the list.")

    assert text == f"🎤 Hey Andy, add milk to the list.\n[voice note {PATH}, 9 s]"
    assert await outcome(harness) == (None, True)


async def test_a_note_that_only_speaks_of_andy_is_talk(harness: WhatsAppHome, phone: Phone) -> None:
    text = await say(harness, phone, "We should ask somebody like Andy about that.")

    assert text.startswith("🎤 We should ask")
    assert await outcome(harness) == ("no trigger", False)


async def test_a_note_joins_the_turn_that_waits_also_as_an_older_message(
    harness: WhatsAppHome, phone: Phone, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "model" / "pipe")
    phone.files[b"3A1"] = b"pipe"
    part = e2e.AudioMessage(mediaKey=b"3A1", directPath="/v", mimetype="audio/ogg", PTT=True, seconds=9)
    phone.write(wa.heard(Message(audioMessage=part), message_id="3A1"))
    phone.write(wa.heard("@Andy and bread", message_id="3A2"))
    await until(lambda: has_texts(harness, 2), "both")
    words = json.dumps({"text": "Andy add milk"})
    await asyncio.to_thread((tmp_path / "model" / "pipe").write_text, words, encoding="utf-8")
    await until(lambda: has_file(harness, "3A1"), "the note")

    turns = await harness.rows("SELECT first_seq, last_seq FROM turns")
    assert turns == [{"first_seq": 1, "last_seq": 2}]
    assert [await outcome(harness, one) for one in ("3A1", "3A2")] == [(None, True)] * 2


async def has_texts(harness: WhatsAppHome, count: int) -> bool:
    return len(await harness.texts()) == count


@pytest.mark.parametrize(
    ("body", "seconds", "why"),
    [
        (json.dumps({"failure": transcription_program.NO_WORDS}).encode(), 9, transcription_program.NO_WORDS),
        (b"", 9, transcriber.FAILED),
        (b"[1, 2]", 9, transcriber.FAILED),
        (b'{"text": 7}', 9, transcriber.FAILED),
        (b"{}", 3600, transcription_program.TOO_LONG),
    ],
    ids=["no words", "no answer", "no object", "no text", "an hour"],
)
async def test_a_note_that_cannot_be_written_down_says_why_in_its_place(
    harness: WhatsAppHome, phone: Phone, body: bytes, seconds: int, why: str
) -> None:
    text = await say(harness, phone, body, seconds=seconds)

    assert text == f"[voice note {PATH}, {seconds} s: {why}]"
    assert await outcome(harness) == ("no trigger", False)


async def test_a_note_that_takes_too_long_is_given_up_and_the_next_is_heard(
    harness: WhatsAppHome, phone: Phone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(transcriber, "START_SECONDS", 0.3)
    text = await say(harness, phone, b"hang", seconds=0)
    assert text == f"[voice note {PATH}: {transcriber.FAILED}]"
    # On a slow machine it was given up before it had begun.
    (tmp_path / "model" / "busy").unlink(missing_ok=True)

    monkeypatch.setattr(transcriber, "START_SECONDS", 60)
    assert "🎤 again" in await say(harness, phone, "again", message_id="3A2")


async def test_a_korean_chat_is_listened_to_in_korean(harness: WhatsAppHome, phone: Phone) -> None:
    phone.write(wa.heard("내일 소풍 도시락 뭐 싸지? OK?", message_id="3A1"))

    assert "🎤 in ko" in await say(harness, phone, "in LANGUAGE", message_id="3A2")


async def test_the_language_is_that_of_the_chat_with_the_note_and_not_of_the_groups_first(
    harness: WhatsAppHome, phone: Phone
) -> None:
    async with harness.database.transaction() as tx:
        await registration.add_chat(tx, "family", "local:family", now_ms=1, is_notify_chat=True)
    phone.write(wa.heard("내일 소풍 도시락 뭐 싸지? OK?", message_id="3A1"))

    assert "🎤 in ko" in await say(harness, phone, "in LANGUAGE", message_id="3A2")


async def test_a_chat_in_another_language_is_listened_to_in_the_one_that_is_heard(
    harness: WhatsAppHome, phone: Phone
) -> None:
    phone.write(wa.heard("What about tomorrow? 내일", message_id="3A1"))

    assert "🎤 in none" in await say(harness, phone, "in LANGUAGE", message_id="3A2")


async def test_notes_that_come_together_are_heard_one_at_a_time(harness: WhatsAppHome, phone: Phone) -> None:
    names = [f"3A{number}" for number in range(1, 5)]
    for name in names:
        phone.files[name.encode()] = json.dumps({"text": f"note {name}"}).encode()
        part = e2e.AudioMessage(
            mediaKey=name.encode(), directPath="/v", mimetype="audio/ogg", PTT=True, seconds=9
        )
        phone.write(wa.heard(Message(audioMessage=part), message_id=name))
    for name in names:
        await until(lambda name=name: has_file(harness, name), "the file")

    assert [text.splitlines()[0] for text in await harness.texts()] == [f"🎤 note {name}" for name in names]


async def test_a_group_with_many_notes_holds_up_no_other(tmp_path: Path) -> None:
    heard: list[str] = []
    voice = VoiceTranscriber(tmp_path, command=(sys.executable, str(LISTENER)))
    os.mkfifo(tmp_path / "pipe")

    async def listen_to(group: str, name: str, content: str) -> None:
        (tmp_path / name).write_text(content, encoding="utf-8")
        found = await voice.transcribe(tmp_path / name, seconds=0, group=group)
        heard.append(found.text or f"{name}: {found.failure}")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(listen_to("eve", "first", "pipe"))
        await until(lambda: (tmp_path / "busy").exists(), "it listens")
        for number in range(transcriber.MAX_WAITING + 1):
            tasks.create_task(listen_to("eve", f"eve{number}", json.dumps({"text": f"eve {number}"})))
        await until(lambda: len(heard) == 1, "one is too many")
        assert heard == [f"eve{transcriber.MAX_WAITING}: {transcriber.TOO_MANY_WAITING}"]
        tasks.create_task(listen_to("bob", "bob", json.dumps({"text": "bob"})))
        await asyncio.to_thread((tmp_path / "pipe").write_text, json.dumps({"text": "eve first"}))

    assert heard[1:4] == ["eve first", "bob", "eve 0"]
    assert len(heard) == transcriber.MAX_WAITING + 3


async def test_one_that_gives_up_waiting_leaves_the_turn_to_the_next(tmp_path: Path) -> None:
    voice = VoiceTranscriber(tmp_path, command=(sys.executable, str(LISTENER)))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "first").write_text("pipe", encoding="utf-8")
    (tmp_path / "other").write_text(json.dumps({"text": "other"}), encoding="utf-8")
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(voice.transcribe(tmp_path / "first", seconds=0, group="eve"))
        await until(lambda: (tmp_path / "busy").exists(), "it listens")
        gone = tasks.create_task(voice.transcribe(tmp_path / "other", seconds=0, group="eve"))
        bob = tasks.create_task(voice.transcribe(tmp_path / "other", seconds=0, group="bob"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.to_thread((tmp_path / "pipe").write_text, json.dumps({"text": "first"}))

    assert (first.result().text, bob.result().text, gone.cancelled()) == ("first", "other", True)


async def test_notes_that_give_up_just_as_a_turn_is_passed_on_hold_up_no_later_one(tmp_path: Path) -> None:
    voice = VoiceTranscriber(tmp_path)

    async def have_a_turn() -> None:
        async with voice._one_at_a_time("eve"):
            pass

    async with voice._one_at_a_time("eve"):
        waiting = [asyncio.create_task(have_a_turn()) for _ in range(2)]
        await asyncio.sleep(0)
    for note in waiting:
        note.cancel()
    await asyncio.wait(waiting)
    assert [note.cancelled() for note in waiting] == [True, True]
    later = asyncio.create_task(have_a_turn())
    await until(later.done, "the next note has its turn")
    await later


async def test_a_program_that_prints_without_end_is_killed_at_once(tmp_path: Path) -> None:
    endless = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    voice = VoiceTranscriber(tmp_path, command=(sys.executable, "-c", endless))

    assert (await voice.transcribe(tmp_path, seconds=0)).failure == transcriber.FAILED


async def test_what_a_program_says_after_more_than_it_may_print_is_not_read(tmp_path: Path) -> None:
    much = f"print('x' * {4 * transcriber.MAX_OUTPUT_BYTES}); print('{{\"text\": \"hello\"}}')"
    voice = VoiceTranscriber(tmp_path, command=(sys.executable, "-c", much))

    assert (await voice.transcribe(tmp_path, seconds=0)).failure == transcriber.FAILED


async def test_what_it_says_besides_is_read_to_the_end_and_its_last_words_are_logged(tmp_path: Path) -> None:
    noisy = "import sys; sys.stderr.write('e' * 1_000_000 + 'last'); print('{\"text\": \"heard\"}')"
    voice = VoiceTranscriber(tmp_path, command=(sys.executable, "-c", noisy))

    assert (await voice.transcribe(tmp_path, seconds=0)).text == "heard"


@pytest.mark.parametrize("turns_between", [1, 2, 3])
async def test_the_program_is_killed_if_the_host_stops_just_after_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns_between: int
) -> None:
    monkeypatch.setattr(VoiceTranscriber, "seconds_for", lambda *_: 0.1)
    before = set(psutil.Process().children())
    voice = VoiceTranscriber(tmp_path, command=(sys.executable, "-c", "import time; time.sleep(600)"))
    listening = asyncio.create_task(voice.transcribe(tmp_path / "note", seconds=1))
    while not listening.cancelling():  # until the time limit cancels it  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    for _ in range(turns_between):
        await asyncio.sleep(0)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await until(lambda: set(psutil.Process().children()) <= before, "it is killed")
