"""Decisions, files, what is in hand, what is known of the session: at their limits, and mended."""

from __future__ import annotations

from orchestrator.context import memory
from orchestrator.context.models import Checkpoint, Context, Dialogue, Memory, Sdk
from orchestrator.context.workflow import Plan, PlanTask, Workflow
from tests.support.dialogues import NOW, context, question


def decided(*texts: str) -> tuple[str, ...]:
    kept = Memory()
    for text in texts:
        kept = memory.with_decision(kept, text)
    return kept.last_decisions


def test_decisions_are_20_at_most_the_oldest_dropped_each_200_characters_without_stray_blanks():
    kept = decided(*(f"  decision\n {number} " for number in range(25)))

    assert kept == tuple(f"decision {number}" for number in range(5, 25))
    assert decided("x" * 500) == ("x" * 199 + "…",)
    assert decided("", "  ") == ()


def test_the_same_decision_again_is_the_newest():
    assert decided("a", "b", "a") == ("b", "a")


def test_open_files_are_20_at_most_unique_the_newest_last():
    kept = Memory()
    for number in [*range(25), 10]:
        kept = memory.with_open_file(kept, f" trip/{number}.md ")

    assert len(kept.open_files) == 20
    assert kept.open_files[-1] == "trip/10.md"
    assert len(set(kept.open_files)) == 20
    assert memory.with_open_file(kept, "x" * 301).open_files == kept.open_files


def test_c_21_decisions_and_file_names_hold_no_secret():
    assert decided("use password=hunter2") == ("use password=[redacted]",)
    assert memory.with_open_file(Memory(), "ghp_" + "a1" * 12).open_files == ("[redacted]",)


PLANS = Workflow(
    current_plan_id="plan_001",
    plans=(
        Plan(id="plan_001", tasks=(PlanTask(id="task_001"),)),
        Plan(id="plan_002", tasks=(PlanTask(id="task_005"),)),
    ),
)


def repaired(plan: str | None, task: str | None, workflow: Workflow = PLANS) -> Memory:
    return memory.repaired(context(memory=Memory(active_plan_id=plan, active_task_id=task)), workflow)


def test_ids_that_lead_somewhere_stay_as_they_are():
    whole = context(memory=Memory(active_plan_id="plan_001", active_task_id="task_001"))

    assert memory.repaired(whole, PLANS) is whole.memory
    assert memory.repaired(context(), Workflow()) == Memory()


def test_c_8_an_id_that_leads_nowhere_is_taken_away_and_noted():
    gone = repaired("plan_009", "task_001", Workflow())

    assert (gone.active_plan_id, gone.active_task_id) == (None, None)
    assert gone.note == "What was in hand changed: the plan plan_009 is gone, the task task_001 is gone."
    task_gone = repaired("plan_001", "task_009")
    assert (task_gone.active_plan_id, task_gone.active_task_id) == ("plan_001", None)
    assert "task_009" in (task_gone.note or "")


def test_c_8_after_a_crash_between_the_two_files_the_workflow_is_right():
    moved = repaired("plan_002", "task_005")

    assert (moved.active_plan_id, moved.active_task_id, moved.note) == ("plan_001", None, None)
    # Each plan numbers its tasks from 1: the same number in another plan is another task.
    renumbered = repaired("plan_002", "task_001")
    assert (renumbered.active_plan_id, renumbered.active_task_id) == ("plan_001", None)
    begun = repaired(None, None)
    assert (begun.active_plan_id, begun.note) == ("plan_001", None)


def test_a_new_session_has_checkpoints_of_its_own_and_the_old_one_is_remembered():
    sdk = memory.with_session(Sdk(), session_id="one", model="m", context_tokens=7, now_ms=NOW)
    sdk = memory.with_checkpoint(sdk, 3, "uuid-3")

    again = memory.with_session(sdk, session_id="one", provider="p", now_ms=NOW - 5)
    assert again == sdk.model_copy(update={"provider": "p"})

    other = memory.with_session(again, session_id="two", now_ms=NOW + 5)
    assert (other.session_id, other.checkpoints, other.history) == ("two", (), ("one",))
    assert (other.model, other.last_active_ms) == ("m", NOW + 5)


def test_the_newest_20_checkpoints_are_kept_one_a_turn():
    sdk = Sdk(session_id="one")
    for turn in [*range(30), 29]:
        sdk = memory.with_checkpoint(sdk, turn, f"uuid-{turn}-{len(sdk.checkpoints)}")

    assert [one.turn for one in sdk.checkpoints] == list(range(10, 30))


def test_whoever_wrote_it_everything_comes_down_to_its_limits():
    wild = Context(
        memory=Memory(
            last_decisions=tuple(f"{n} " + "x" * 300 for n in range(50)),
            open_files=(*(f"f{n}" for n in range(50)), "x" * 400, " "),
            working_directory="/" * 999,
            note="n" * 999,
        ),
        conversation=Dialogue(running_summary="a" * 5_000),
        sdk=Sdk(checkpoints=tuple(Checkpoint(turn=n, uuid="u") for n in range(50)), history=("s",) * 50),
    )

    tamed = memory.capped(wild)

    assert len(tamed.memory.last_decisions) == 20
    assert max(map(len, tamed.memory.last_decisions)) == 200
    assert tamed.memory.open_files == tuple(f"f{n}" for n in range(30, 50))
    assert (len(tamed.memory.working_directory), len(tamed.memory.note or "")) == (300, 300)
    assert len(tamed.conversation.running_summary) == 700
    assert (len(tamed.sdk.checkpoints), len(tamed.sdk.history)) == (20, 20)
    assert memory.capped(tamed) == tamed


def test_of_an_outsized_context_the_newest_two_messages_stay():
    wild = context(*(question(n, "x" * 50_000) for n in range(9)))

    assert [len(one.content) for one in memory.with_two_messages(wild).conversation.recent_window] == [
        24_000,
        24_000,
    ]
