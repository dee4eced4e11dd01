from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_runner.agents.claude.compaction import archive

NOW = datetime(2026, 11, 22, 9, 5, tzinfo=UTC)


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    path = tmp_path / "sessions" / "abc.jsonl"
    path.parent.mkdir()
    lines = [
        {"type": "user", "message": {"role": "user", "content": "안녕, plan a trip"}},
        {"type": "user", "isMeta": True, "message": {"role": "user", "content": "not said by anyone"}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "Gladly."}]}},
        {"type": "assistant", "message": {"content": [{"type": "tool_use", "name": "Bash"}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "content": "42"}]}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "x" * 2500}]}},
        {"type": "system", "content": "noise"},
        {"type": "user", "message": "of another form"},
        {"type": "assistant", "message": [1]},
    ]
    path.write_text("\n".join([*map(json.dumps, lines), '{"type": "user", "mess', "[1]"]))
    return path


def keep(transcript: Path, tmp_path: Path) -> Path:
    path = archive(transcript, tmp_path / "conversations", assistant="Ada", now=NOW)
    assert path
    return path


def test_what_was_said_is_kept_in_order_under_names(transcript: Path, tmp_path: Path) -> None:
    text = keep(transcript, tmp_path).read_text()
    assert text.index("**User**: 안녕, plan a trip") < text.index("**Ada**: Gladly.")
    assert "not said by anyone" not in text
    assert "noise" not in text
    assert "42" not in text


def test_a_long_message_is_cut(transcript: Path, tmp_path: Path) -> None:
    assert "x" * 2000 + "…" in keep(transcript, tmp_path).read_text()


def test_the_name_is_the_summary_when_there_is_one(transcript: Path, tmp_path: Path) -> None:
    index = {
        "entries": [
            {"sessionId": "other", "summary": "no"},
            {"sessionId": "abc", "summary": "Trip: 부산 & Sea!"},
        ]
    }
    (transcript.parent / "sessions-index.json").write_text(json.dumps(index))
    path = keep(transcript, tmp_path)
    assert path.name == "2026-11-22-trip-sea.md"
    assert path.read_text().startswith("# Trip: 부산 & Sea!\n")


@pytest.mark.parametrize("index", ["", "[", '{"entries": 3}', '{"entries": [1]}', '[{"sessionId": "abc"}]'])
def test_without_a_summary_the_name_is_the_time(transcript: Path, tmp_path: Path, index: str) -> None:
    (transcript.parent / "sessions-index.json").write_text(index)
    assert keep(transcript, tmp_path).name == "2026-11-22-conversation-0905.md"


def test_an_earlier_copy_is_not_written_over(transcript: Path, tmp_path: Path) -> None:
    first, second = keep(transcript, tmp_path), keep(transcript, tmp_path)
    assert second.name == "2026-11-22-conversation-0905-2.md"
    assert first.exists()


def test_an_empty_conversation_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("")
    assert archive(tmp_path / "t.jsonl", tmp_path / "conversations", assistant="Ada", now=NOW) is None
    assert not (tmp_path / "conversations").exists()


def test_a_message_of_another_shape_is_left_out(transcript: Path, tmp_path: Path) -> None:
    with transcript.open("a") as lines:
        lines.write('\n{"type": "user", "message": "x"}\n{"type": "assistant", "message": [1]}\n')
    assert "**Ada**: Gladly." in keep(transcript, tmp_path).read_text()
