"""A group's context through its one door, on a real disk."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.context import script
from orchestrator.context.copies import Copies
from orchestrator.context.desk import ContextManager
from orchestrator.context.files import Trouble
from orchestrator.context.models import Checkpoint, iso
from orchestrator.context.refusals import (
    PlanRefused,
    SnapshotDamaged,
    UnknownPlan,
    UnknownPlanTask,
    UnknownSnapshot,
)
from orchestrator.context.snapshots import Kept
from orchestrator.context.tokens import EncodingCounter, EstimatingCounter
from orchestrator.context.window import KEEP_TOKENS, cost
from orchestrator.context.workflow import Status
from orchestrator.credentials.known import forms_of
from orchestrator.redaction import Redactor
from orchestrator.registration import FolderRefused
from tests.fakes.dialogues import MINUTE, NOW, answers, asks

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


@pytest.fixture
def troubles() -> list[Trouble]:
    return []


@pytest.fixture
def desk(tmp_path: Path, troubles: list[Trouble]) -> ContextManager:
    return ContextManager.of(
        tmp_path / "context", "family", counter=COUNTER, project_name="Family", report=troubles.append
    )


def converse(desk: ContextManager, turns: int, text: str = FIFTY, *, since: int = 1) -> None:
    for turn in range(since, since + turns):
        desk.register_message("user", f"{turn}? {text}", message_id=f"t{turn}.u", now_ms=NOW + turn * MINUTE)
        desk.register_message(
            "assistant", f"{turn}! {text}", message_id=f"t{turn}.a", now_ms=NOW + turn * MINUTE + 1
        )


def kept_files(desk: ContextManager) -> list[Path]:
    return [path for path in desk.brain.path.parent.rglob("*") if path.is_file()]


def test_a_group_that_never_spoke_has_nothing_to_tell_and_nothing_on_the_disk(
    desk: ContextManager, tmp_path: Path
):
    assert not desk.hydrate_prompt(now_ms=NOW)
    assert desk.meta(now_ms=NOW) == ""
    assert desk.snapshot(now_ms=NOW) is None
    assert desk.snapshots() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["", "..", "a/b", ".hidden", "x" * 65, "a\n", "/etc"])
def test_no_other_name_than_a_groups_leads_anywhere(tmp_path: Path, folder: str):
    with pytest.raises(FolderRefused):
        ContextManager.of(tmp_path, folder, counter=COUNTER)


def test_c_1_all_of_a_group_lies_in_its_own_hidden_folder_for_the_owner_alone(
    desk: ContextManager, tmp_path: Path
):
    converse(desk, 1)
    desk.create_plan("Trip", now_ms=NOW)
    desk.snapshot(now_ms=NOW)
    brain = tmp_path / "context" / "family" / ".ai-brain"

    assert {path.name for path in brain.iterdir()} == {
        *("context.json", "workflow.json", "snapshots", "documents", ".context.lock"),
    }
    for path in (tmp_path / "context").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert (tmp_path / "context").stat().st_mode & 0o777 == 0o700


def test_c_4_two_groups_know_nothing_of_each_other(desk: ContextManager, tmp_path: Path):
    other = ContextManager.of(tmp_path / "context", "work", counter=COUNTER)
    converse(desk, 1)

    assert not other.hydrate_prompt(now_ms=NOW)


def test_the_schema_of_context_json_is_that_of_the_specification(desk: ContextManager):
    converse(desk, 1)
    desk.note_session(session_id="s", model="m", provider="p", context_tokens=5, now_ms=NOW)
    document = json.loads((desk.brain.path / "context.json").read_text())

    assert set(document) == {
        *("version", "created_at", "updated_at", "memory", "conversation", "stats"),
        *("revision", "writer", "sdk", "pending_user"),
    }
    assert document["version"] == "1.0"
    assert document["created_at"] == "2026-11-22T09:31:00.000Z"
    assert set(document["memory"]) == {
        *("active_plan_id", "active_task_id", "last_decisions", "open_files", "working_directory", "note"),
    }
    assert set(document["conversation"]) == {"running_summary", "folded", "recent_window", "seen"}
    assert set(document["conversation"]["recent_window"][0]) == {"id", "role", "content", "ts"}
    assert set(document["stats"]) == {"dialog_turns", "total_tokens"}
    assert document["revision"] == 3
    assert len(document["writer"].split(":")) == 3


def test_c_2_titles_of_plans_are_not_in_context_json(desk: ContextManager):
    desk.create_plan("A title of its own", tasks=["Another"], now_ms=NOW)
    desk.set_active_task("task_001", now_ms=NOW)
    text = (desk.brain.path / "context.json").read_text()

    assert "A title" not in text
    assert "Another" not in text
    assert '"plan_001"' in text


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


def test_sixty_messages_leave_a_window_of_at_most_800_tokens_and_a_summary_of_the_rest(desk: ContextManager):
    converse(desk, 30)

    context = desk.load(now_ms=NOW).context
    window = context.conversation.recent_window
    every = [f"t{turn}.{who}" for turn in range(1, 31) for who in "ua"]

    assert [*context.conversation.folded, *(message.id for message in window)] == every, "each folded once"
    assert sum(cost(message, COUNTER) for message in window) <= KEEP_TOKENS
    assert window[0].role == "user"
    assert window[-1].id == "t30.a"
    assert 0 < script.weight(context.conversation.running_summary) <= script.FULL
    assert context.stats.dialog_turns == 30
    assert desk.hydrate_prompt(now_ms=NOW).tokens <= 4_096


def test_c_11_every_save_has_a_revision_a_writer_and_a_time_and_what_changes_nothing_is_not_saved(
    desk: ContextManager,
):
    converse(desk, 1)
    before = desk.load(now_ms=NOW).context

    desk.register_messages([asks(1, f"1? {FIFTY}")], now_ms=NOW + 5)
    desk.record_decision(" ", now_ms=NOW + 5)
    desk.settle("t9.u", now_ms=NOW + 5)
    assert desk.load(now_ms=NOW).context == before

    desk.record_decision("We go", now_ms=NOW + 7)
    after = desk.load(now_ms=NOW).context
    assert (after.revision, after.updated_at, after.writer) == (
        before.revision + 1,
        iso(NOW + 7),
        desk.brain.writer,
    )


def test_a_question_that_gets_no_answer_any_more_is_not_pending(desk: ContextManager):
    desk.register_messages([asks(1, "?")], now_ms=NOW)
    assert desk.load(now_ms=NOW).context.pending_user == "t1.u"

    desk.settle("t1.u", now_ms=NOW)

    assert desk.load(now_ms=NOW).context.pending_user is None
    assert "not answered" not in desk.hydrate_prompt(now_ms=NOW).text


def test_a_better_summary_takes_the_place_of_the_one_it_was_made_of(desk: ContextManager):
    desk.register_messages([asks(1, "x " * 700), answers(1, "y")], now_ms=NOW)
    done = desk.register_messages([asks(2, "z " * 700)], now_ms=NOW)
    made = done.context.conversation.running_summary

    assert done.evicted
    assert desk.put_summary("Better. password=hunter2", instead_of=made, now_ms=NOW)
    assert not desk.put_summary("Too late", instead_of=made, now_ms=NOW)
    assert desk.load(now_ms=NOW).context.conversation.running_summary == "Better. password=[redacted]"


def test_c_20_what_the_sdk_told_overwrites_nobody(desk: ContextManager, monkeypatch: pytest.MonkeyPatch):
    load = ContextManager.load

    def then_somebody_else(self: ContextManager, *, now_ms: int) -> Kept:
        kept = load(self, now_ms=now_ms)
        monkeypatch.undo()
        desk.record_decision("Meanwhile", now_ms=NOW)
        desk.register_messages([asks(1, "?")], now_ms=NOW)
        return kept

    monkeypatch.setattr(ContextManager, "load", then_somebody_else)
    desk.note_session(session_id="one", checkpoint=Checkpoint(turn=1, uuid="uuid-1"), now_ms=NOW)

    context = desk.load(now_ms=NOW).context
    assert (context.sdk.session_id, context.sdk.checkpoints[0].uuid) == ("one", "uuid-1")
    assert context.memory.last_decisions == ("Meanwhile",)
    assert [message.id for message in context.conversation.recent_window] == ["t1.u"]
    before = context.revision
    desk.note_session(session_id="one", checkpoint=Checkpoint(turn=1, uuid="uuid-1"), now_ms=NOW)
    assert desk.load(now_ms=NOW).context.revision == before, "the same again is no change"


def test_what_a_model_is_told_is_measured_as_it_counts(desk: ContextManager):
    converse(desk, 1)
    kept = desk.load(now_ms=NOW)
    whole = desk.hydrate_prompt(now_ms=NOW, kept=kept)

    assert desk.counting_as(1.5).hydrate_prompt(now_ms=NOW).tokens == math.ceil(whole.tokens * 1.5)
    assert desk.counting_as(1.5).meta(now_ms=NOW, kept=kept) == desk.meta(now_ms=NOW)


def test_what_the_sdk_told_is_kept(desk: ContextManager):
    desk.note_session(session_id="one", model="opus", provider="anthropic", context_tokens=1_000, now_ms=NOW)
    desk.note_checkpoint(1, "uuid-1", now_ms=NOW)
    desk.note_session(context_tokens=2_000, now_ms=NOW + 1)
    sdk = desk.load(now_ms=NOW).context.sdk

    assert (sdk.session_id, sdk.model, sdk.context_tokens, sdk.last_active_ms) == (
        "one",
        "opus",
        2_000,
        NOW + 1,
    )
    assert [(one.turn, one.uuid) for one in sdk.checkpoints] == [(1, "uuid-1")]


# Plans


def test_a_plan_that_is_made_is_in_hand_and_made_once(desk: ContextManager):
    for _ in range(2):
        plan = desk.create_plan("Trip", objective="Sea", tasks=["Book"], request_id="r1", now_ms=NOW)

    kept = desk.load(now_ms=NOW)
    assert plan.id == "plan_001"
    assert len(kept.workflow.plans) == 1
    assert kept.context.memory.active_plan_id == kept.workflow.current_plan_id == "plan_001"


def test_a_task_is_changed_once_a_request_and_added_once(desk: ContextManager):
    desk.create_plan("Trip", tasks=["Book"], now_ms=NOW)

    added = [desk.update_plan_task(title="Pack", request_id="r2", now_ms=NOW).id for _ in range(2)]
    desk.update_plan_task("task_001", status="blocked", request_id="r3", now_ms=NOW)
    desk.update_plan_task("task_001", status="pending", request_id="r4", now_ms=NOW)
    late = desk.update_plan_task("task_001", status="blocked", request_id="r3", now_ms=NOW)

    assert added == ["task_002", "task_002"]
    assert len(desk.load(now_ms=NOW).workflow.plans[0].tasks) == 2
    assert late.status is Status.PENDING


def test_c_18_a_switch_of_plans_is_in_both_files(desk: ContextManager):
    desk.create_plan("One", tasks=["Begin"], now_ms=NOW)
    desk.set_active_task("task_001", now_ms=NOW)
    desk.create_plan("Two", tasks=["Other"], now_ms=NOW)
    assert desk.load(now_ms=NOW).context.memory.active_task_id is None

    desk.set_active_plan("plan_001", now_ms=NOW)

    kept = desk.load(now_ms=NOW)
    assert kept.workflow.current_plan_id == kept.context.memory.active_plan_id == "plan_001"
    assert kept.context.memory.active_task_id == "task_001"
    assert desk.set_active_plan(None, now_ms=NOW) is None
    assert desk.load(now_ms=NOW).context.memory.active_task_id is None


def test_c_18_after_a_task_that_is_done_comes_the_next(desk: ContextManager):
    desk.create_plan("Trip", tasks=["Book", "Pack"], now_ms=NOW)
    assert desk.set_active_task("task_001", now_ms=NOW).status is Status.IN_PROGRESS  # type: ignore[union-attr]

    desk.update_plan_task("task_001", status="completed", now_ms=NOW)
    assert desk.load(now_ms=NOW).context.memory.active_task_id == "task_002"
    desk.update_plan_task("task_002", status="completed", now_ms=NOW)

    kept = desk.load(now_ms=NOW)
    assert kept.context.memory.active_task_id is None
    assert kept.workflow.plans[0].status is Status.COMPLETED


def test_c_18_a_switch_may_begin_the_summary_anew_with_the_plans_opening(desk: ContextManager):
    converse(desk, 12)
    desk.create_plan("Trip", objective="A day at the sea", now_ms=NOW)

    desk.set_active_plan("plan_001", resets_summary=True, now_ms=NOW)

    assert desk.load(now_ms=NOW).context.conversation.running_summary == "Trip\nA day at the sea"
    (taken,) = desk.snapshots()
    assert "early ferry" in desk.brain.snapshots.read(taken.name).context.conversation.running_summary


def test_what_cannot_be_done_changes_nothing(desk: ContextManager):
    desk.create_plan("Trip", tasks=["Book"], now_ms=NOW)
    before = desk.load(now_ms=NOW)

    with pytest.raises(UnknownPlan):
        desk.set_active_plan("plan_009", now_ms=NOW)
    with pytest.raises(UnknownPlanTask):
        desk.set_active_task("task_009", now_ms=NOW)
    with pytest.raises(PlanRefused):
        desk.create_plan(" ", now_ms=NOW)
    with pytest.raises(PlanRefused):
        desk.update_plan_task("task_001", status="maybe", now_ms=NOW)

    assert desk.load(now_ms=NOW) == before


def test_without_a_plan_no_task_can_be_in_hand(desk: ContextManager):
    with pytest.raises(UnknownPlanTask):
        desk.set_active_task("task_001", now_ms=NOW)
    with pytest.raises(UnknownPlan):
        desk.update_plan_task("task_001", status="completed", now_ms=NOW)
    assert desk.set_active_task(None, now_ms=NOW) is None


def test_c_27_five_hundred_tasks_are_kept_and_told_within_the_bounds(desk: ContextManager):
    desk.create_plan("Big", tasks=[f"Task {number} of many" for number in range(500)], now_ms=NOW)
    desk.set_active_task("task_250", now_ms=NOW)
    desk.update_plan_task("task_250", status="completed", now_ms=NOW)

    told = desk.hydrate_prompt(now_ms=NOW)

    assert desk.load(now_ms=NOW).context.memory.active_task_id == "task_001"
    assert told.tokens <= 4_096
    assert "1 of 500 tasks completed" in told.text


def test_finished_plans_are_put_away_when_there_is_no_room(
    desk: ContextManager, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.context.files.WORKFLOW_BYTES", 4_000)
    desk.create_plan("Old", objective="o" * 1_500, tasks=["Only"], now_ms=NOW)
    desk.update_plan_task("task_001", status="completed", now_ms=NOW)

    desk.create_plan("New", objective="o" * 1_500, now_ms=NOW)

    assert [plan.title for plan in desk.load(now_ms=NOW).workflow.plans] == ["New"]
    away = json.loads((desk.brain.path / "documents" / "plan_001" / "plan.json").read_text())
    assert away["title"] == "Old"
    with pytest.raises(PlanRefused, match="room"):
        desk.create_plan("Third", objective="o" * 1_900, now_ms=NOW)
    assert [plan.title for plan in desk.load(now_ms=NOW).workflow.plans] == ["New"]


# Forgetting


def test_a_closed_conversation_is_forgotten_but_for_plans_and_decisions(desk: ContextManager):
    converse(desk, 12)
    desk.create_plan("Trip", now_ms=NOW)
    desk.record_decision("Early ferry", now_ms=NOW)
    desk.note_session(session_id="one", now_ms=NOW)

    taken = desk.close_conversation(now_ms=NOW, through_turn=15)

    context = desk.load(now_ms=NOW).context
    assert taken is not None
    assert context.conversation.recent_window == ()
    assert context.conversation.running_summary == ""
    assert (context.sdk.session_id, context.sdk.history) == (None, ("one",))
    assert context.memory.last_decisions == ("Early ferry",)
    assert context.memory.active_plan_id == "plan_001"
    converse(desk, 15)
    assert desk.load(now_ms=NOW).context.conversation.recent_window == ()
    desk.restore(taken.name, now_ms=NOW)
    assert len(desk.load(now_ms=NOW).context.conversation.recent_window) > 2


@pytest.mark.parametrize("with_plans", [False, True])
def test_a_reset_forgets_everything_but_plans_those_too_if_asked(desk: ContextManager, with_plans: bool):
    converse(desk, 3)
    desk.create_plan("Trip", now_ms=NOW)
    desk.record_decision("Early ferry", now_ms=NOW)
    before = desk.load(now_ms=NOW).context.revision

    assert desk.reset(now_ms=NOW, with_plans=with_plans) is not None

    kept = desk.load(now_ms=NOW)
    assert kept.context.is_empty
    assert kept.context.revision == before + 1
    assert len(kept.workflow.plans) == (0 if with_plans else 1)
    assert not desk.hydrate_prompt(now_ms=NOW)
    converse(desk, 3)
    assert not desk.hydrate_prompt(now_ms=NOW)


# Snapshots


def test_c_22_a_snapshot_is_taken_only_of_what_changed(desk: ContextManager):
    converse(desk, 1)

    first = desk.snapshot(now_ms=NOW)
    assert first is not None
    assert first.name == "context-20261122T093000Z-r2.json"
    assert desk.snapshot(now_ms=NOW + 30 * MINUTE) is None
    converse(desk, 1, since=2)
    assert desk.snapshot(now_ms=NOW + 60 * MINUTE) is not None
    assert [one.revision for one in desk.snapshots()] == [4, 2]


def test_c_22_a_clock_that_was_put_back_makes_no_old_snapshot_the_newest(desk: ContextManager):
    converse(desk, 1)
    before = desk.snapshot(now_ms=NOW + 400 * 24 * 60 * MINUTE)
    desk.record_decision("Later", now_ms=NOW)
    later = desk.snapshot(now_ms=NOW)

    assert desk.snapshot(now_ms=NOW + MINUTE) is None
    assert desk.snapshots() == [later, before]
    (desk.brain.path / "context.json").write_text("{")
    assert desk.load(now_ms=NOW).context.memory.last_decisions == ("Later",)


def test_c_22_context_and_workflow_are_restored_together_after_a_snapshot_of_the_present(
    desk: ContextManager,
):
    converse(desk, 2)
    desk.create_plan("Old plan", now_ms=NOW)
    taken = desk.snapshot(now_ms=NOW)
    assert taken is not None
    converse(desk, 3, "Something else.", since=3)
    desk.create_plan("New plan", now_ms=NOW)
    desk.note_session(session_id="one", now_ms=NOW)
    present = desk.load(now_ms=NOW)

    before = desk.restore(taken.name, now_ms=NOW + MINUTE)

    assert before is not None
    kept = desk.load(now_ms=NOW)
    assert [plan.title for plan in kept.workflow.plans] == ["Old plan"]
    assert [one.id for one in kept.context.conversation.recent_window] == ["t1.u", "t1.a", "t2.u", "t2.a"]
    assert kept.context.memory.active_plan_id == "plan_001"
    assert kept.context.sdk.session_id is None
    assert kept.context.revision == present.context.revision + 1
    converse(desk, 3, "Something else.", since=3)
    assert len(desk.load(now_ms=NOW).context.conversation.recent_window) == 4, "what was undone came back"
    desk.restore(before.name, now_ms=NOW + 2 * MINUTE)
    assert [plan.title for plan in desk.load(now_ms=NOW).workflow.plans] == ["Old plan", "New plan"]


def test_c_22_a_snapshot_that_cannot_be_read_is_refused_and_changes_nothing(desk: ContextManager):
    converse(desk, 1)
    taken = desk.snapshot(now_ms=NOW)
    assert taken is not None
    before = desk.load(now_ms=NOW)
    for content in ("", "{", '{"version": "1.0", "context": {"revision": "x"}}', '{"version": "7.0"}', "[]"):
        (desk.brain.path / "snapshots" / taken.name).write_text(content)
        with pytest.raises(SnapshotDamaged, match="nothing was changed"):
            desk.restore(taken.name, now_ms=NOW)
    with pytest.raises(UnknownSnapshot):
        desk.restore("context-20200101T000000Z-r1.json", now_ms=NOW)
    with pytest.raises(UnknownSnapshot):
        desk.restore("../context.json", now_ms=NOW)

    assert desk.load(now_ms=NOW) == before


def test_c_22_a_pinned_snapshot_outlives_retention(desk: ContextManager):
    names = []
    for number in range(52):
        desk.record_decision(f"Decision {number}", now_ms=NOW)
        taken = desk.snapshot(now_ms=NOW + number * MINUTE)
        assert taken is not None
        names.append(taken.name)
        if number == 0:
            desk.pin(taken.name)

    left = {one.name: one.is_pinned for one in desk.snapshots()}
    assert left[names[0]]
    assert names[1] not in left
    assert len(left) == 49

    desk.unpin(names[0])
    desk.record_decision("Last", now_ms=NOW)
    desk.snapshot(now_ms=NOW + 60 * MINUTE)
    assert names[0] not in {one.name for one in desk.snapshots()}
    for call in (desk.pin, desk.unpin):
        with pytest.raises(UnknownSnapshot):
            call(names[0])


# Secrets


def test_c_21_canary_secrets_are_in_no_file(desk: ContextManager):
    for turn, secret in enumerate(SECRETS, 1):
        long = f"{'word ' * 150} {secret} {'word ' * 150}"
        desk.register_messages([asks(turn, long), answers(turn, f"We decided on {secret}.")], now_ms=NOW)
        plan = desk.create_plan(secret, objective=secret, tasks=[secret], now_ms=NOW)
        desk.update_plan_task(
            "task_001", plan_id=plan.id, title=secret, description=secret, outputs=[secret], now_ms=NOW
        )
        desk.record_decision(secret, now_ms=NOW)
        desk.note_open_file(f"notes/{secret}.md", now_ms=NOW)
        summary = desk.load(now_ms=NOW).context.conversation.running_summary
        desk.put_summary(f"{secret} {summary}", instead_of=summary, now_ms=NOW)
        desk.note_session(session_id=secret[:200], model=secret[:200], now_ms=NOW)
        desk.note_checkpoint(turn, secret[:200], now_ms=NOW)
        desk.snapshot(now_ms=NOW + turn * MINUTE)
    desk.close_conversation(now_ms=NOW + 60 * MINUTE)

    files = kept_files(desk)
    assert len(files) > 8
    assert [path.name for path in files if CANARY.encode() in path.read_bytes()] == []
    assert CANARY not in desk.hydrate_prompt(now_ms=NOW).text


def test_c_21_what_the_host_knows_by_its_value_is_in_no_file_in_no_form(tmp_path: Path):
    value = "velvet tiger 49"
    redactor = Redactor(lambda: forms_of([value]))
    desk = ContextManager.of(tmp_path / "context", "family", counter=COUNTER, redactor=redactor)
    quoted = [value, quote(value, safe=""), base64.b64encode(f"jane:{value}!".encode()).decode()]
    for turn, secret in enumerate(quoted, 1):
        long = f"{'word ' * 150} {secret} {'word ' * 150}"
        desk.register_messages([asks(turn, long), answers(turn, f"We decided on {secret}.")], now_ms=NOW)
        desk.register_message("user", f"It is {secret}", message_id=f"t{turn + 9}.u", now_ms=NOW)
        plan = desk.create_plan(secret, objective=secret, tasks=[secret], now_ms=NOW)
        desk.update_plan_task(
            "task_001", plan_id=plan.id, title=secret, description=secret, outputs=[secret], now_ms=NOW
        )
        desk.record_decision(f"{'so ' * 60}{secret} {secret}", now_ms=NOW)
        desk.note_open_file(f"notes/{secret}.md", now_ms=NOW)
        desk.join_summary(f"{'x' * 170}{secret} is what they said.", now_ms=NOW)
        summary = desk.load(now_ms=NOW).context.conversation.running_summary
        desk.put_summary(f"{secret} {summary}", instead_of=summary, now_ms=NOW)
        desk.note_session(session_id=secret, model=secret, now_ms=NOW)
        desk.snapshot(now_ms=NOW + turn * MINUTE)
    Copies(tmp_path, redactor).write("context", desk.load(now_ms=NOW), is_new=True)

    parts = ("velvet", "tiger", *(quoted[2][start : start + 6] for start in range(8, 14)))
    held = {path.name: path.read_text() for path in (tmp_path / "context").rglob("*") if path.is_file()}
    assert len(held) > 5
    assert [(name, part) for name, text in held.items() for part in parts if part in text] == []


def test_c_21_a_value_that_became_a_secret_leaves_with_the_next_change(tmp_path: Path):
    known: list[str] = []
    desk = ContextManager.of(tmp_path, "family", counter=COUNTER, redactor=Redactor(lambda: known))
    desk.record_decision("It is velvet-tiger-49", now_ms=NOW)
    taken = desk.snapshot(now_ms=NOW)
    assert taken is not None
    known.append("velvet-tiger-49")

    desk.restore(taken.name, now_ms=NOW)

    assert "velvet" not in (desk.brain.path / "context.json").read_text()


def test_c_21_no_line_of_a_key_is_left_of_what_a_session_said_of_itself(desk: ContextManager):
    lines = "\n".join(f"{CANARY}{number}" for number in range(60))

    desk.join_summary(
        f"Much was said.\n-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----\nIt was done.",
        now_ms=NOW,
    )

    summary = desk.load(now_ms=NOW).context.conversation.running_summary
    assert CANARY not in summary
    assert "It was done." in summary


def test_c_20_a_holder_that_took_its_time_overwrites_nobody(desk: ContextManager):
    converse(desk, 2)
    base = desk.load(now_ms=NOW).context
    converse(desk, 20, since=3)
    desk.record_decision("Meanwhile", now_ms=NOW)

    mine = base.model_copy(
        update={"memory": base.memory.model_copy(update={"working_directory": "/workspace/group"})}
    )
    saved = desk.save(mine, base=base, now_ms=NOW)

    assert saved == desk.load(now_ms=NOW).context
    assert saved.memory.working_directory == "/workspace/group"
    assert saved.memory.last_decisions == ("Meanwhile",)
    assert saved.conversation.recent_window[-1].id == "t22.a"
    assert saved.stats.dialog_turns == 22
    assert sum(cost(message, COUNTER) for message in saved.conversation.recent_window) <= KEEP_TOKENS


nasty = st.text(max_size=50) | st.sampled_from(
    ["x" * 500, "pwd=a " * 60, "\ud800", "\0", "가" * 500, "\n", "t1.u", "👩‍👩‍👧‍👦" * 40, "{}", ""]
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 8), nasty), max_size=8))
def test_whatever_is_kept_can_be_read_again(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
):
    found: list[Trouble] = []
    desk = ContextManager.of(
        tmp_path_factory.mktemp("contexts"), "family", counter=EstimatingCounter(), report=found.append
    )

    def plan(text: str) -> None:
        with suppress(PlanRefused):
            desk.create_plan(text, objective=text, tasks=[text], request_id=text, now_ms=NOW)

    acts: list[Callable[[str], object]] = [
        lambda text: desk.register_message("user", text, message_id=text, now_ms=NOW),
        lambda text: desk.note_session(
            session_id=text, model=text, provider=text, context_tokens=1, now_ms=NOW
        ),
        lambda text: desk.note_checkpoint(1, text, now_ms=NOW),
        plan,
        lambda text: desk.record_decision(text, now_ms=NOW),
        lambda text: desk.note_open_file(text, now_ms=NOW),
        lambda text: desk.put_summary(text, instead_of="", now_ms=NOW),
        lambda text: desk.snapshot(now_ms=NOW),
        lambda text: desk.close_conversation(now_ms=NOW),
    ]
    for number, text in steps:
        acts[number](text)
        before = desk.load(now_ms=NOW)
        assert desk.load(now_ms=NOW) == before
        assert desk.hydrate_prompt(now_ms=NOW).tokens <= 4_096
    assert found == []
    assert all(desk.brain.snapshots.read(one.name) for one in desk.snapshots())
