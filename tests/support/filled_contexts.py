"""Fill a group's context with a conversation, and find the files in which it is stored."""

from __future__ import annotations

from pathlib import Path

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.dialogue import NewMessage
from orchestrator.context.tokens import EncodingCounter
from tests.support.dialogues import MINUTE, NOW

COUNTER = EncodingCounter()
FIFTY = "The early ferry takes us to the island where we walk along the beach and have lunch. " * 3
CANARY = "Q7xK2mVt9LpR4sWd"
SECRETS = (
    f"sk-ant-api03-{CANARY}",
    f"ghp_{CANARY}{CANARY}",
    f"xoxb-12345-{CANARY}",
    f"Authorization: Bearer {CANARY}",
    f"password={CANARY}",
    f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
)


def converse(harness: ContextManager, turns: int, text: str = FIFTY, *, since: int = 1) -> None:
    for turn in range(since, since + turns):
        harness.register_message(
            NewMessage(id=f"t{turn}.u", role="user", content=f"{turn}? {text}", at_ms=NOW + turn * MINUTE),
            now_ms=NOW + turn * MINUTE,
        )
        harness.register_message(
            NewMessage(
                id=f"t{turn}.a", role="assistant", content=f"{turn}! {text}", at_ms=NOW + turn * MINUTE + 1
            ),
            now_ms=NOW + turn * MINUTE + 1,
        )


def stored_files(harness: ContextManager) -> list[Path]:
    return [path for path in harness.files.path.parent.rglob("*") if path.is_file()]
