"""What a context keeps of a conversation, and forgets: through its one door, on a real disk."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.context import script
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.dialogue import NewMessage
from orchestrator.context.files import ContextRepair
from orchestrator.context.models import Checkpoint, iso
from orchestrator.context.snapshots import SnapshotContents
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.context.window import WINDOW_TOKENS, cost
from orchestrator.context.workflow import PlanRefused
from orchestrator.groups.registration import FolderRefused
from tests.support.dialogues import NOW, answers, asks
from tests.support.filled_contexts import COUNTER, FIFTY, converse


def test_a_group_that_never_spoke_has_nothing_to_tell_and_nothing_on_the_disk(
    manager: ContextManager, tmp_path: Path
):
    assert not manager.hydrate_prompt(now_ms=NOW)
    assert manager.meta(now_ms=NOW) == ""
    assert manager.snapshot(now_ms=NOW) is None
    assert manager.snapshots() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["", "..", "a/b", ".hidden", "x" * 65, "a\n", "/etc"])
def test_no_other_name_than_a_groups_leads_anywhere(tmp_path: Path, folder: str):
    with pytest.raises(FolderRefused):
        ContextManager.of(tmp_path, folder, counter=COUNTER)


def test_c_1_all_of_a_group_lies_in_its_own_hidden_folder_for_the_owner_alone(
    manager: ContextManager, tmp_path: Path
):
    converse(manager, 1)
    manager.create_plan("Trip", now_ms=NOW)
    manager.snapshot(now_ms=NOW)
    brain = tmp_path / "context" / "family" / ".ai-brain"

    assert {path.name for path in brain.iterdir()} == {
        *("context.json", "workflow.json", "snapshots", "documents", ".context.lock"),
    }
    for path in (tmp_path / "context").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert (tmp_path / "context").stat().st_mode & 0o777 == 0o700


def test_c_4_two_groups_know_nothing_of_each_other(manager: ContextManager, tmp_path: Path):
    other = ContextManager.of(tmp_path / "context", "work", counter=COUNTER)
    converse(manager, 1)

    assert not other.hydrate_prompt(now_ms=NOW)


def test_the_schema_of_context_json_is_that_of_the_specification(manager: ContextManager):
    converse(manager, 1)
    manager.note_session(session_id="s", model="m", provider="p", context_tokens=5, now_ms=NOW)
    document = json.loads((manager.files.path / "context.json").read_text())

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


def test_c_2_titles_of_plans_are_not_in_context_json(manager: ContextManager):
    manager.create_plan("A title of its own", tasks=["Another"], now_ms=NOW)
    manager.set_active_task("task_001", now_ms=NOW)
    text = (manager.files.path / "context.json").read_text()

    assert "A title" not in text
    assert "Another" not in text
    assert '"plan_001"' in text


def test_c_12_a_message_is_kept_and_told_to_the_next_session(manager: ContextManager):
    manager.register_message(
        NewMessage(id="t1.u", role="user", content="Where do we eat?", at_ms=NOW), now_ms=NOW
    )
    manager.register_message(
        NewMessage(id="t1.a", role="assistant", content="At the harbour.", at_ms=NOW + 1), now_ms=NOW + 1
    )

    told = manager.hydrate_prompt(now_ms=NOW + 60_000)

    assert told.message_ids == ("t1.u", "t1.a")
    assert told.lines[-4:] == (
        "RECENT DIALOG:",
        'USER: "Where do we eat?"',
        'ASSISTANT: "At the harbour."',
        "</conversation-history>",
    )


def test_sixty_messages_leave_a_window_of_at_most_800_tokens_and_a_summary_of_the_rest(
    manager: ContextManager,
):
    converse(manager, 30)

    context = manager.load(now_ms=NOW).context
    window = context.conversation.recent_window
    every = [f"t{turn}.{who}" for turn in range(1, 31) for who in "ua"]

    assert [*context.conversation.folded, *(message.id for message in window)] == every, "each folded once"
    assert sum(cost(message, COUNTER) for message in window) <= WINDOW_TOKENS
    assert window[0].role == "user"
    assert window[-1].id == "t30.a"
    assert 0 < script.weight(context.conversation.running_summary) <= script.MAX_SUMMARY_WEIGHT
    assert context.stats.dialog_turns == 30
    assert manager.hydrate_prompt(now_ms=NOW).tokens <= 4_096


def test_c_11_every_save_has_a_revision_a_writer_and_a_time_and_what_changes_nothing_is_not_saved(
    manager: ContextManager,
):
    converse(manager, 1)
    before = manager.load(now_ms=NOW).context

    manager.register_message(asks(1, f"1? {FIFTY}"), now_ms=NOW + 5)
    manager.record_decision(" ", now_ms=NOW + 5)
    manager.settle("t9.u", now_ms=NOW + 5)
    assert manager.load(now_ms=NOW).context == before

    manager.record_decision("We go", now_ms=NOW + 7)
    after = manager.load(now_ms=NOW).context
    assert (after.revision, after.updated_at, after.writer) == (
        before.revision + 1,
        iso(NOW + 7),
        manager.files.writer,
    )


def test_a_question_that_gets_no_answer_any_more_is_not_pending(manager: ContextManager):
    manager.register_message(asks(1, "?"), now_ms=NOW)
    assert manager.load(now_ms=NOW).context.pending_user == "t1.u"

    manager.settle("t1.u", now_ms=NOW)

    assert manager.load(now_ms=NOW).context.pending_user is None
    assert "not answered" not in manager.hydrate_prompt(now_ms=NOW).text


def test_a_better_summary_takes_the_place_of_the_one_it_was_made_of(manager: ContextManager):
    manager.register_message(asks(1, "x " * 700), answers(1, "y"), now_ms=NOW)
    done = manager.register_message(asks(2, "z " * 700), now_ms=NOW)
    made = done.context.conversation.running_summary

    assert done.evicted
    assert manager.put_summary("Better. password=hunter2", instead_of=made, now_ms=NOW)
    assert not manager.put_summary("Too late", instead_of=made, now_ms=NOW)
    assert manager.load(now_ms=NOW).context.conversation.running_summary == "Better. password=[redacted]"


def test_c_20_what_the_sdk_told_overwrites_nobody(manager: ContextManager, monkeypatch: pytest.MonkeyPatch):
    load = ContextManager.load

    def then_somebody_else(self: ContextManager, *, now_ms: int) -> SnapshotContents:
        kept = load(self, now_ms=now_ms)
        monkeypatch.undo()
        manager.record_decision("Meanwhile", now_ms=NOW)
        manager.register_message(asks(1, "?"), now_ms=NOW)
        return kept

    monkeypatch.setattr(ContextManager, "load", then_somebody_else)
    manager.note_session(session_id="one", checkpoint=Checkpoint(turn=1, uuid="uuid-1"), now_ms=NOW)

    context = manager.load(now_ms=NOW).context
    assert (context.sdk.session_id, context.sdk.checkpoints[0].uuid) == ("one", "uuid-1")
    assert context.memory.last_decisions == ("Meanwhile",)
    assert [message.id for message in context.conversation.recent_window] == ["t1.u"]
    before = context.revision
    manager.note_session(session_id="one", checkpoint=Checkpoint(turn=1, uuid="uuid-1"), now_ms=NOW)
    assert manager.load(now_ms=NOW).context.revision == before, "the same again is no change"


def test_what_a_model_is_told_is_measured_as_it_counts(manager: ContextManager):
    converse(manager, 1)
    kept = manager.load(now_ms=NOW)
    whole = manager.hydrate_prompt(now_ms=NOW, contents=kept)

    assert manager.counting_as(1.5).hydrate_prompt(now_ms=NOW).tokens == math.ceil(whole.tokens * 1.5)
    assert manager.counting_as(1.5).meta(now_ms=NOW, contents=kept) == manager.meta(now_ms=NOW)


def test_what_the_sdk_told_is_kept(manager: ContextManager):
    manager.note_session(
        session_id="one", model="opus", provider="anthropic", context_tokens=1_000, now_ms=NOW
    )
    manager.note_session(checkpoint=Checkpoint(turn=1, uuid="uuid-1"), now_ms=NOW)
    manager.note_session(context_tokens=2_000, now_ms=NOW + 1)
    sdk = manager.load(now_ms=NOW).context.sdk

    assert (sdk.session_id, sdk.model, sdk.context_tokens, sdk.last_active_ms) == (
        "one",
        "opus",
        2_000,
        NOW + 1,
    )
    assert [(one.turn, one.uuid) for one in sdk.checkpoints] == [(1, "uuid-1")]


def test_a_closed_conversation_is_forgotten_but_for_plans_and_decisions(manager: ContextManager):
    converse(manager, 12)
    manager.create_plan("Trip", now_ms=NOW)
    manager.record_decision("Early ferry", now_ms=NOW)
    manager.note_session(session_id="one", now_ms=NOW)

    taken = manager.close_conversation(now_ms=NOW, through_turn=15)

    context = manager.load(now_ms=NOW).context
    assert taken is not None
    assert context.conversation.recent_window == ()
    assert context.conversation.running_summary == ""
    assert (context.sdk.session_id, context.sdk.history) == (None, ("one",))
    assert context.memory.last_decisions == ("Early ferry",)
    assert context.memory.active_plan_id == "plan_001"
    converse(manager, 15)
    assert manager.load(now_ms=NOW).context.conversation.recent_window == ()
    manager.restore(taken.name, now_ms=NOW)
    assert len(manager.load(now_ms=NOW).context.conversation.recent_window) > 2


@pytest.mark.parametrize("with_plans", [False, True])
def test_a_reset_forgets_everything_but_plans_those_too_if_asked(manager: ContextManager, with_plans: bool):
    converse(manager, 3)
    manager.create_plan("Trip", now_ms=NOW)
    manager.record_decision("Early ferry", now_ms=NOW)
    before = manager.load(now_ms=NOW).context.revision

    assert manager.reset(now_ms=NOW, with_plans=with_plans) is not None

    kept = manager.load(now_ms=NOW)
    assert kept.context.is_empty
    assert kept.context.revision == before + 1
    assert len(kept.workflow.plans) == (0 if with_plans else 1)
    assert not manager.hydrate_prompt(now_ms=NOW)
    converse(manager, 3)
    assert not manager.hydrate_prompt(now_ms=NOW)


def test_c_20_a_holder_that_took_its_time_overwrites_nobody(manager: ContextManager):
    converse(manager, 2)
    base = manager.load(now_ms=NOW).context
    converse(manager, 20, since=3)
    manager.record_decision("Meanwhile", now_ms=NOW)

    mine = base.model_copy(
        update={"memory": base.memory.model_copy(update={"working_directory": "/workspace/group"})}
    )
    saved = manager.save(mine, base=base, now_ms=NOW)

    assert saved == manager.load(now_ms=NOW).context
    assert saved.memory.working_directory == "/workspace/group"
    assert saved.memory.last_decisions == ("Meanwhile",)
    assert saved.conversation.recent_window[-1].id == "t22.a"
    assert saved.stats.dialog_turns == 22
    assert sum(cost(message, COUNTER) for message in saved.conversation.recent_window) <= WINDOW_TOKENS


nasty = st.text(max_size=50) | st.sampled_from(
    ["x" * 500, "pwd=a " * 60, "\ud800", "\0", "가" * 500, "\n", "t1.u", "👩‍👩‍👧‍👦" * 40, "{}", ""]
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 8), nasty), max_size=8))
def test_whatever_is_kept_can_be_read_again(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
):
    found: list[ContextRepair] = []
    manager = ContextManager.of(
        tmp_path_factory.mktemp("contexts"), "family", counter=EstimatingCounter(), report=found.append
    )

    def plan(text: str) -> None:
        with suppress(PlanRefused):
            manager.create_plan(text, objective=text, tasks=[text], request_id=text, now_ms=NOW)

    acts: list[Callable[[str], object]] = [
        lambda text: manager.register_message(
            NewMessage(id=text, role="user", content=text, at_ms=NOW), now_ms=NOW
        ),
        lambda text: manager.note_session(
            session_id=text, model=text, provider=text, context_tokens=1, now_ms=NOW
        ),
        lambda text: manager.note_session(checkpoint=Checkpoint(turn=1, uuid=text), now_ms=NOW),
        plan,
        lambda text: manager.record_decision(text, now_ms=NOW),
        lambda text: manager.note_open_file(text, now_ms=NOW),
        lambda text: manager.put_summary(text, instead_of="", now_ms=NOW),
        lambda text: manager.snapshot(now_ms=NOW),
        lambda text: manager.close_conversation(now_ms=NOW),
    ]
    for number, text in steps:
        acts[number](text)
        before = manager.load(now_ms=NOW)
        assert manager.load(now_ms=NOW) == before
        assert manager.hydrate_prompt(now_ms=NOW).tokens <= 4_096
    assert found == []
    assert all(manager.files.snapshots.read(one.name) for one in manager.snapshots())
