"""No secret stays in what a context keeps."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import quote

from orchestrator.base.redaction import Redactor
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.dialogue import NewMessage
from orchestrator.context.models import Checkpoint
from orchestrator.context.recorder import ContextCopies
from orchestrator.proxies.model.credentials import forms_of
from tests.support.dialogues import MINUTE, NOW, answers, asks
from tests.support.filled_contexts import CANARY, COUNTER, SECRETS, stored_files


def test_c_21_canary_secrets_are_in_no_file(manager: ContextManager):
    for turn, secret in enumerate(SECRETS, 1):
        long = f"{'word ' * 150} {secret} {'word ' * 150}"
        manager.register_message(asks(turn, long), answers(turn, f"We decided on {secret}."), now_ms=NOW)
        plan = manager.create_plan(secret, objective=secret, tasks=[secret], now_ms=NOW)
        manager.update_plan_task(
            "task_001", plan_id=plan.id, title=secret, description=secret, outputs=[secret], now_ms=NOW
        )
        manager.record_decision(secret, now_ms=NOW)
        manager.note_open_file(f"notes/{secret}.md", now_ms=NOW)
        summary = manager.load(now_ms=NOW).context.conversation.running_summary
        manager.put_summary(f"{secret} {summary}", instead_of=summary, now_ms=NOW)
        manager.note_session(session_id=secret[:200], model=secret[:200], now_ms=NOW)
        manager.note_session(checkpoint=Checkpoint(turn=turn, uuid=secret[:200]), now_ms=NOW)
        manager.snapshot(now_ms=NOW + turn * MINUTE)
    manager.close_conversation(now_ms=NOW + 60 * MINUTE)

    files = stored_files(manager)
    assert len(files) > 8
    assert [path.name for path in files if CANARY.encode() in path.read_bytes()] == []
    assert CANARY not in manager.hydrate_prompt(now_ms=NOW).text


def test_c_21_what_the_host_knows_by_its_value_is_in_no_file_in_no_form(tmp_path: Path):
    value = "velvet tiger 49"
    redactor = Redactor(lambda: forms_of([value]))
    manager = ContextManager.of(tmp_path / "context", "family", counter=COUNTER, redactor=redactor)
    quoted = [value, quote(value, safe=""), base64.b64encode(f"jane:{value}!".encode()).decode()]
    for turn, secret in enumerate(quoted, 1):
        long = f"{'word ' * 150} {secret} {'word ' * 150}"
        manager.register_message(asks(turn, long), answers(turn, f"We decided on {secret}."), now_ms=NOW)
        manager.register_message(
            NewMessage(id=f"t{turn + 9}.u", role="user", content=f"It is {secret}", at_ms=NOW), now_ms=NOW
        )
        plan = manager.create_plan(secret, objective=secret, tasks=[secret], now_ms=NOW)
        manager.update_plan_task(
            "task_001", plan_id=plan.id, title=secret, description=secret, outputs=[secret], now_ms=NOW
        )
        manager.record_decision(f"{'so ' * 60}{secret} {secret}", now_ms=NOW)
        manager.note_open_file(f"notes/{secret}.md", now_ms=NOW)
        manager.join_summary(f"{'x' * 170}{secret} is what they said.", now_ms=NOW)
        summary = manager.load(now_ms=NOW).context.conversation.running_summary
        manager.put_summary(f"{secret} {summary}", instead_of=summary, now_ms=NOW)
        manager.note_session(session_id=secret, model=secret, now_ms=NOW)
        manager.snapshot(now_ms=NOW + turn * MINUTE)
    ContextCopies(tmp_path, redactor).write("context", manager.load(now_ms=NOW), is_new=True)

    parts = ("velvet", "tiger", *(quoted[2][start : start + 6] for start in range(8, 14)))
    held = {path.name: path.read_text() for path in (tmp_path / "context").rglob("*") if path.is_file()}
    assert len(held) > 5
    assert [(name, part) for name, text in held.items() for part in parts if part in text] == []


def test_c_21_a_value_that_became_a_secret_leaves_with_the_next_change(tmp_path: Path):
    known: list[str] = []
    manager = ContextManager.of(tmp_path, "family", counter=COUNTER, redactor=Redactor(lambda: known))
    manager.record_decision("It is velvet-tiger-49", now_ms=NOW)
    taken = manager.snapshot(now_ms=NOW)
    assert taken is not None
    known.append("velvet-tiger-49")

    manager.restore(taken.name, now_ms=NOW)

    assert "velvet" not in (manager.files.path / "context.json").read_text()


def test_c_21_no_line_of_a_key_is_left_of_what_a_session_said_of_itself(manager: ContextManager):
    lines = "\n".join(f"{CANARY}{number}" for number in range(60))

    manager.join_summary(
        f"Much was said.\n-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----\nIt was done.",
        now_ms=NOW,
    )

    summary = manager.load(now_ms=NOW).context.conversation.running_summary
    assert CANARY not in summary
    assert "It was done." in summary
