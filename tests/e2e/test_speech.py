"""A reply is read aloud by a real synthesizer, from the settings to the chat."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.processes.andy import AndyProcess, until


@pytest.mark.skipif(shutil.which("flite") is None, reason="apt-get install flite")
def test_a_voice_note_follows_each_reply_of_a_group_that_wants_it(tmp_path: Path) -> None:
    with AndyProcess(
        tmp_path / "home", environment={"ANDY_SPEECH_COMMAND": "flite -voice slt -o {file}"}
    ) as andy:
        andy.say("add milk to the shopping list")
        done = andy.cli("groups", "config", "main", "--set", json.dumps({"speech": True}))
        assert done.returncode == 0, done.stderr
        said = andy.say("add bread to the shopping list")
        until(lambda: spoken(andy), what="the voice note is sent")
        (note,) = spoken(andy)
        assert (note["state"], note["file_name"]) == (
            "sent",
            "voice.wav" if not shutil.which("ffmpeg") else "voice.ogg",
        )
        (text,) = andy.rows("SELECT text FROM outbox WHERE turn_id = ? AND file_path IS NULL", said["turn"])
        assert text["text"] == said["reply"], "the text was sent as ever"


def spoken(andy: AndyProcess) -> list:
    return andy.rows("SELECT * FROM outbox WHERE dedupe_key LIKE 'speech:%' AND state = 'sent'")
