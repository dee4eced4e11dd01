"""A group's context through its one door, on a real disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.context.desk import ContextManager
from orchestrator.context.tokens import EncodingCounter

NOW = 1_795_000_000_000


@pytest.fixture
def desk(tmp_path: Path) -> ContextManager:
    return ContextManager.of(tmp_path, "family", counter=EncodingCounter(), project_name="Family")


def test_a_group_that_never_spoke_has_nothing_to_tell_and_nothing_on_the_disk(
    desk: ContextManager, tmp_path: Path
):
    assert not desk.hydrate_prompt(now_ms=NOW)
    assert list(tmp_path.iterdir()) == []


def test_c_12_a_message_is_kept_and_told_to_the_next_session(desk: ContextManager):
    desk.register_message("user", "Where do we eat?", message_id="t1.u", now_ms=NOW)
    desk.register_message("assistant", "At the harbour.", message_id="t1.a", now_ms=NOW + 1)

    told = desk.hydrate_prompt(now_ms=NOW + 60_000)

    assert told.message_ids == ("t1.u", "t1.a")
    assert told.lines[-4:] == (
        "RECENT DIALOG:",
        'USER: "Where do we eat?"',
        'ASSISTANT: "At the harbour."',
        "</conversation-history>",
    )
