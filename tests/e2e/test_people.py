"""Notes of a person, and forgetting them: on a real host with the agent without a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_undo import reply
from tests.processes.andy import AndyProcess, until

ENGLISH = (
    "remember that I collect zeppelins",
    "I collect zeppelins",
    "what do you know about me?",
    "forget me",
    "yes, forget me",
)
KOREAN = (
    "내가 zeppelins를 모은다고 기억해 줘",
    "내가 zeppelins를 모은다",
    "나에 대해 뭘 알고 있어?",
    "나를 잊어 줘",
    "네, 나를 잊어 줘",
)


@pytest.fixture
def andy(tmp_path: Path, runtime: str) -> Iterator[AndyProcess]:
    with AndyProcess(tmp_path / "home", runtime=runtime) as andy:
        yield andy


def in_context(andy: AndyProcess, word: str) -> bool:
    return any(word in path.read_text() for path in (andy.home / "data" / "context").rglob("*.json"))


@pytest.mark.parametrize(("note", "noted", "ask", "forget", "sure"), [ENGLISH, KOREAN], ids=["en", "ko"])
def test_a_person_asks_what_is_known_of_them_and_is_forgotten(
    andy: AndyProcess, note: str, noted: str, ask: str, forget: str, sure: str
) -> None:
    assert noted in reply(andy, note)
    (row,) = andy.rows("SELECT about_json, said_by_json FROM memory_notes")
    assert row["about_json"] == row["said_by_json"] != "[]"
    assert f"• {noted}" in reply(andy, ask)
    assert sure in reply(andy, forget)
    assert len(andy.rows("SELECT 1 FROM memory_notes")) == 1, "it is asked first"
    reply(andy, sure)
    until(lambda: not andy.rows("SELECT 1 FROM person_removals"), what="the person is forgotten")
    assert andy.rows("SELECT 1 FROM memory_notes") == []
    assert andy.rows("SELECT 1 FROM messages WHERE content LIKE '%zeppelins%'") == []
    until(lambda: not in_context(andy, "zeppelins"), what="neither context nor snapshots have the words")
