"""When the host may write a request from a node into a mailbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.containers.swarm import session


def test_a_request_waits_for_another_one_under_its_name_and_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_WAITING_REQUESTS", 2)
    mailbox = tmp_path / "messages"
    assert session._has_room(mailbox, "note.json", "one")
    mailbox.mkdir()
    (mailbox / "note.json").write_text("one")
    assert not session._has_room(mailbox, "note.json", "two"), "the first would be lost"
    assert session._has_room(mailbox, "note.json", "one"), "the same again, after a connection broke"
    (mailbox / "note.json").rename(mailbox / "other.json")
    assert session._has_room(mailbox, "note.json", "two")
    (mailbox / "third.json").write_text("three")
    assert not session._has_room(mailbox, "note.json", "two"), "the mailbox is full"


def test_a_request_with_line_ends_of_another_system_is_known_again(tmp_path: Path) -> None:
    (tmp_path / "note.json").write_bytes(b'{"a":1}\r\n')
    assert session._has_room(tmp_path, "note.json", '{"a":1}\r\n')
