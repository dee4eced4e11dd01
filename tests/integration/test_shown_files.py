"""Pictures and short texts that came with a message, as the real CLI sends them to the model service."""

from __future__ import annotations

import base64
import json
import os
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from agent_runner.agents.claude import shown_files
from agent_runner.workspace import Workspace
from tests.doubles.messages_api import Fail, Recorded, Say, ScriptedMessagesApi, Step
from tests.processes.runner import RunnerProcess, make_workspace, order_of


def png(width: int = 2, height: int = 2) -> bytes:
    """A whole picture, all of it white."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + b"\xff" * width for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


PICTURE = png()
JPEG = b"\xff\xd8\xff\xe0" + b"x" * 100 + b"\xff\xd9"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = make_workspace(tmp_path)
    (workspace.group / "attachments").mkdir()
    return workspace


def put(workspace: Workspace, name: str, body: bytes = PICTURE) -> str:
    (workspace.group / "attachments" / name).write_bytes(body)
    return f"attachments/{name}"


def run(workspace: Workspace, api: ScriptedMessagesApi, prompt: str) -> RunnerProcess:
    environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"}
    return RunnerProcess(workspace, order_of(prompt), environment=environment)


def blocks_of(request: Recorded) -> list[dict[str, Any]]:
    contents = [message["content"] for message in request.body["messages"]]
    return [block for content in contents if isinstance(content, list) for block in content]


def pictures_in(request: Recorded) -> list[dict[str, Any]]:
    return [block["source"] for block in blocks_of(request) if block["type"] == "image"]


def test_a_picture_and_a_short_text_reach_the_model_with_the_message(
    workspace: Workspace, api: ScriptedMessagesApi
) -> None:
    picture = put(workspace, "20261123-0900-image.png")
    note = put(workspace, "20261123-0901-list.txt", b"milk & <b>eggs</b>\n")
    asked = f'<message sender="Jane">[image {picture}] [document {note}] what is this?</message>'
    with run(workspace, api, asked) as runner:
        assert runner.wait_for("turn_end").status == "success"
        runner.ask(2, "and now?")
        assert runner.wait_for("turn_end", turn=2).status == "success"
    (shown,) = pictures_in(api.turns[0])
    assert (shown["media_type"], base64.b64decode(shown["data"])) == ("image/png", PICTURE)
    sent = json.dumps(blocks_of(api.turns[0]))
    assert "milk &amp; &lt;b>eggs&lt;/b>" in sent
    assert "what is this?" in sent
    assert len(pictures_in(api.turns[1])) == 1, "of the question before, and sent no second time"


def test_a_picture_that_the_service_refuses_costs_no_answer(workspace: Workspace) -> None:
    def decide(request: Recorded) -> Step:
        if pictures_in(request):
            return Fail(400, message="Could not process image")
        return Say("I see its name.")

    picture = put(workspace, "image.png")
    with ScriptedMessagesApi(decide) as api, run(workspace, api, f"[image {picture}] and?") as runner:
        assert runner.wait_for("result").result == "I see its name."
        runner.ask(2, "again?")
        assert runner.wait_for("turn_end", turn=2).status == "success"
        assert pictures_in(api.turns[-1]) == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (PICTURE, "image/png"),
        (JPEG, "image/jpeg"),
        (b"GIF89a" + b"x" * 20 + b";", "image/gif"),
        (b"RIFF" + (8).to_bytes(4, "little") + b"WEBPxxxx", "image/webp"),
        (PICTURE[:-30], None),
        (JPEG[:-2], None),
        (png(9_000, 1), None),
        (b"<svg/>", None),
        (b"", None),
    ],
)
def test_what_is_a_whole_picture_is_told_by_its_bytes(body: bytes, kind: str | None) -> None:
    assert shown_files.kind_of(body) == kind


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("large.png", PICTURE + b"\0" * shown_files.MAX_PICTURE_BYTES),
        ("long.txt", b"x" * (shown_files.MAX_TEXT_BYTES + 1)),
        ("letters.txt", b"\xff\xfe\x00"),
        ("report.pdf", b"%PDF-1.7"),
    ],
)
def test_what_is_too_large_or_is_neither_stays_a_path(workspace: Workspace, name: str, body: bytes) -> None:
    prompt = f"[document {put(workspace, name, body)}]"
    assert shown_files.content_of(prompt, workspace.group) == prompt


def test_a_file_that_grows_while_it_is_read_is_read_to_the_limit_and_left_out(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workspace.group / put(workspace, "growing.log", b"x")

    def and_then_grow(descriptor: int) -> os.stat_result:
        info = os.stat(descriptor)
        os.truncate(path, 100_000_000)  # takes no room: it has no blocks
        return info

    monkeypatch.setattr(shown_files.os, "fstat", and_then_grow)
    tracemalloc.start()
    try:
        assert shown_files._read(path, limit=1_000_000) == b""
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_the_newest_pictures_are_shown_in_their_order(workspace: Workspace) -> None:
    names = [put(workspace, f"{number}.png") for number in range(8)]
    prompt = " ".join(f"[image {name}]" for name in names)
    content = shown_files.content_of(prompt, workspace.group)
    assert (
        [block["text"] for block in content if block["type"] == "text"][1:]
        == [  # type: ignore[index]
            f"{name}:" for name in names[-shown_files.MAX_PICTURES :]
        ]
    )


@pytest.mark.parametrize("name", ["attachments/../../secret.png", "attachments/a/b.png", "secret.png"])
def test_no_text_of_a_chat_shows_another_file(workspace: Workspace, tmp_path: Path, name: str) -> None:
    for place in (tmp_path / "secret.png", workspace.group / "secret.png"):
        place.write_bytes(PICTURE)
    (workspace.group / "attachments" / "link.png").symlink_to(tmp_path / "secret.png")
    for prompt in (f"[image {name}]", "[image attachments/link.png]", "attachments/link.png"):
        assert shown_files.content_of(prompt, workspace.group) == prompt
