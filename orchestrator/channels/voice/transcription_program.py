"""Transcribe one sound file: a program of its own, started for each voice note.

`python -m orchestrator.channels.voice.transcription_program MODEL FILE [LANGUAGE]` prints one line of JSON:
`{"text": …, "language": "en", "seconds": 12.0}`, or `{"failure": …}`, which ends a sentence for a person.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.channels.voice import fence

MAX_SECONDS = 600
"""Longest voice note in seconds that is transcribed."""
CPU_SECONDS = 600
UNREADABLE = "it is damaged, or no sound"
TOO_LONG = f"it is longer than {MAX_SECONDS // 60} minutes"
NO_WORDS = "I hear no words in it"


def main(arguments: list[str]) -> int:
    """Transcribe a sound file, and print the result as one line of JSON; return the exit code.

    `arguments` are the folder of the model, the path of the file and, optionally, its language. The process
    is restricted first; the JSON has a `warning` if the system cannot restrict it.
    """
    model, path, *language = arguments
    with Path(path).open("rb") as sound:
        # Before any library is loaded: onnxruntime, for one, would send telemetry about this machine.
        fence.limit_resources(cpu_seconds=CPU_SECONDS)
        missing_protections = fence.restrict_process(readable=[model], library="faster_whisper")
        from faster_whisper import WhisperModel

        recognizer = WhisperModel(model, device="cpu", compute_type="int8", local_files_only=True)
        result = {"warning": "; ".join(missing_protections)} if missing_protections else {}
        result |= transcript_of(recognizer, sound, language[0] if language else None)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def transcript_of(recognizer: Any, sound: BinaryIO, language: str | None) -> dict[str, Any]:
    """Return the transcription of a sound file: `{"text": …, "language": "en", "seconds": 12.0}`.

    If there is none, return `{"failure": …}` with the reason, which ends a sentence for a person.
    `recognizer` is the loaded model. `language` is the spoken language; None makes the model detect it.
    """
    import av

    try:
        seconds = _duration(sound)
        sound.seek(0)
        if seconds > MAX_SECONDS:
            return {"failure": TOO_LONG}
        # The silence filter prevents noise from becoming words that nobody spoke.
        segments, info = recognizer.transcribe(sound, language=language, vad_filter=True)
        # Segments that the model itself takes for no speech, with near certainty, are left out.
        text = " ".join(segment.text.strip() for segment in segments if segment.no_speech_prob < 0.9)
    except MemoryError:
        return {"failure": TOO_LONG}  # the limited memory is enough for shorter sounds
    except (av.FFmpegError, ValueError, OSError, IndexError, RuntimeError):  # errors that damaged files cause
        return {"failure": UNREADABLE}
    if not text.strip():
        return {"failure": NO_WORDS}
    return {"text": " ".join(text.split()), "language": info.language, "seconds": round(seconds, 1)}


def _duration(sound: BinaryIO) -> float:
    """Return how many seconds of sound a file has, by its packets, because its header may be wrong.

    Counting stops a little above `MAX_SECONDS`. Raises `ValueError` if the file has no sound.
    """
    import av

    with av.open(sound, "r", metadata_errors="ignore") as container:
        if not container.streams.audio:
            raise ValueError(UNREADABLE)
        stream = container.streams.audio[0]
        total_ticks = 0
        for packet in container.demux(stream):
            total_ticks += packet.duration or 0
            if total_ticks * (stream.time_base or 0) > MAX_SECONDS:
                break
        return float(total_ticks * (stream.time_base or 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
