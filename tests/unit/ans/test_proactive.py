"""What is noticed unasked: loops, budgets, a window that fills, checkpoints, changed files. N-50 to N-54."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.ans import staleness
from agent_runner.ans.detectors import (
    BudgetWatch,
    CheckpointPrompts,
    ContextUse,
    RepeatDetector,
    pattern_of,
    threshold,
)
from agent_runner.ans.event import EventDraft
from agent_runner.ans.staleness import KnownFiles


def types(*happenings: EventDraft | None) -> list[str]:
    return [each.type for each in happenings if each is not None]


# Loops


def test_three_of_the_same_in_the_last_six_are_a_loop_said_once_a_turn():
    """B.2: agent.loop.detected, and B.12-12, B.12-18: critical, for it has to be told at once."""
    loops = RepeatDetector()
    read = {"file_path": "a.md"}
    assert loops.called("Read", read) is None
    assert loops.called("Bash", {"command": "ls"}) is None
    assert loops.called("Read", read) is None
    happening = loops.called("Read", read)

    assert happening is not None
    assert (happening.type, happening.severity) == ("agent.loop.detected", "critical")
    assert happening.payload["pattern"] == "Read(file_path=a.md)"
    assert happening.payload["count"] == 3
    assert loops.called("Read", read) is None

    loops.begin_turn()
    assert types(*(loops.called("Read", read) for _ in range(3))) == ["agent.loop.detected"]


def test_what_lies_further_back_than_six_calls_does_not_count():
    loops = RepeatDetector()
    calls = ["a", "b", "c", "a", "d", "e", "a"]

    assert types(*(loops.called("Read", {"path": each}) for each in calls)) == []


def test_a_pattern_is_the_tool_and_the_beginnings_of_its_telling_arguments():
    assert pattern_of("Grep", {"pattern": "x" * 90, "path": "src", "limit": 3}) == (
        f"Grep(path=src, pattern={'x' * 50})"
    )
    assert pattern_of("Wait", {"seconds": 3}) == "Wait()"


@pytest.mark.parametrize(
    ("tool", "calls", "is_loop"),
    [
        (
            "Read",
            [{"file_path": "a", "offset": 1}, {"file_path": "a", "offset": 2}, {"file_path": "a"}],
            True,
        ),
        ("Read", [{"file_path": "a"}, {"file_path": "b"}, {"file_path": "c"}], False),
        ("Edit", [{"file_path": "a", "old_string": each} for each in "xyz"], False),
        ("Edit", [{"file_path": "a", "old_string": "x", "new_string": "y"}] * 3, True),
        ("Bash", [{"command": "x" * 60 + each} for each in "xyz"], False),
        ("list_tasks", [{}] * 3, True),
        ("TodoWrite", [{"todos": [each]} for each in "xyz"], False),
    ],
)
def test_work_that_goes_on_is_no_loop(tool, calls, is_loop):
    """B.2: three edits of one file are no loop, three reads of it are."""
    loops = RepeatDetector()

    assert bool(types(*(loops.called(tool, each) for each in calls))) is is_loop


# Budgets


def test_tokens_are_warned_of_at_eighty_percent_and_when_they_are_used_up_once_each():
    """B.2: budget.token.*, and B.12-6: it was never emitted."""
    budgets = BudgetWatch(max_tokens=1_000)

    said = types(*(budgets.tokens_used(used) for used in (0, 799, 800, 900, 1_000, 1_100)))

    assert said == ["budget.token.warning", "budget.token.exceeded"]
    budgets.begin_turn()
    assert types(budgets.tokens_used(900)) == ["budget.token.warning"]


def test_iterations_are_warned_of_at_seventy_percent_of_thirty():
    """B.2: 21 of 30."""
    budgets = BudgetWatch()

    said = [(used, types(budgets.iterations_used(used))) for used in range(1, 33)]

    assert [each for each in said if each[1]] == [
        (21, ["budget.iteration.warning"]),
        (30, ["budget.iteration.exceeded"]),
    ]


def test_time_is_warned_of_and_never_exceeded():
    """B.2: budget.timeout.warning; that it is over, the host says."""
    budgets = BudgetWatch(max_seconds=1_800)

    assert types(*(budgets.seconds_used(used) for used in (0, 1_439.9, 1_440, 1_700, 1_801))) == [
        "budget.timeout.warning"
    ]


def test_what_was_not_said_in_a_turn_is_said_of_it_as_it_is_over():
    """B.2: a turn without tools has no other moment."""
    budgets = BudgetWatch(max_tokens=1_000, max_iterations=10, max_seconds=100)
    assert budgets.judge(tokens=100, iterations=8, seconds=1)

    found = budgets.look_back(tokens=900, iterations=9, seconds=85)

    assert [(each.type, each.payload["message"]) for each in found] == [
        ("budget.token.warning", "your last answer took 900 of 1,000 tokens: do less in one turn."),
        ("budget.timeout.warning", "your last turn took 85 of 100 seconds: do less in one turn."),
    ]
    assert budgets.look_back(tokens=950, iterations=9, seconds=90) == [], "each once"
    assert types(*budgets.look_back(tokens=1_000, iterations=10, seconds=90)) == [
        "budget.token.exceeded",
        "budget.iteration.exceeded",
    ]


def test_what_is_used_up_at_once_is_not_warned_of_afterwards():
    budgets = BudgetWatch(max_tokens=100)

    assert types(budgets.tokens_used(150), budgets.tokens_used(90)) == ["budget.token.exceeded"]


def test_a_budget_that_is_none_is_never_used_up():
    budgets = BudgetWatch(max_iterations=0)

    assert (
        types(budgets.tokens_used(10**9), budgets.iterations_used(10**6), budgets.seconds_used(10**9)) == []
    )


def test_what_is_told_of_a_budget_is_all_filled_in():
    """B.12-13."""
    happening = BudgetWatch(max_tokens=1_000).tokens_used(801)

    assert happening is not None
    assert happening.payload == {
        "budget_type": "token",
        "current": 801,
        "limit": 1_000,
        "percent": 80,
        "remaining": 199,
        "message": "199 of 1,000 tokens are left: finish what matters most, and say what is open.",
    }


# The window


@pytest.mark.parametrize(
    ("max_tokens", "compaction_at", "expected"),
    [
        (1_000_000, 967_000, 700_000),
        (200_000, 167_000, 140_000),
        (100_000, 67_000, 60_300),
        (200_000, None, 140_000),
    ],
)
def test_it_is_warned_of_before_compaction(max_tokens, compaction_at, expected):
    """N-50."""
    assert threshold(max_tokens, compaction_at) == expected


def test_a_window_that_fills_is_said_once_until_it_is_emptier_or_compacted():
    """N-50."""
    use = ContextUse()
    said = [
        types(use.measured(tokens, 200_000, compaction_at=167_000))
        for tokens in (100_000, 140_000, 150_000, 130_000, 145_000, 119_999, 141_000)
    ]
    assert [bool(each) for each in said] == [False, True, False, False, False, False, True]

    use.compacted()
    assert types(use.measured(150_000, 200_000)) == ["context.approaching_limit"]


def test_of_a_small_window_too():
    """N-50: compaction comes before 70 %."""
    use = ContextUse()

    assert types(use.measured(60_299, 100_000, compaction_at=67_000)) == []
    happening = use.measured(60_300, 100_000, compaction_at=67_000)
    assert happening is not None
    assert happening.payload["percent"] == 60
    assert happening.payload["remaining_tokens"] == 6_700
    assert types(use.measured(59_000, 100_000, compaction_at=67_000)) == []
    assert types(use.measured(60_500, 100_000, compaction_at=67_000)) == [], "59 % is not far enough below"


def test_a_window_of_no_size_is_not_known():
    """N-50."""
    assert ContextUse().measured(10**9, 0) is None


@given(st.lists(st.integers(0, 200_000), max_size=50))
def test_it_is_said_once_between_two_times_that_it_was_below_sixty_percent(measurements):
    """N-50."""
    use, is_armed = ContextUse(), True
    for tokens in measurements:
        is_armed = is_armed or tokens < 120_000
        should_say = is_armed and tokens >= 140_000
        assert bool(use.measured(tokens, 200_000)) is should_say
        is_armed = is_armed and not should_say


# Checkpoints


def test_every_tenth_turn_is_a_checkpoint_and_one_may_be_asked_for():
    """N-54."""
    checkpoints = CheckpointPrompts()

    found = [checkpoints.begin_turn() for _ in range(20)]

    assert [each.payload["turn"] for each in found if each] == [10, 20]
    assert checkpoints.reached("halfway").payload == {"message": "halfway", "turn": 20}


# Changed files


def look(marks: KnownFiles) -> list[EventDraft]:
    marks.check_all()
    return marks.take()


def look_at(marks: KnownFiles, path: str) -> list[EventDraft]:
    marks.check(path)
    return marks.take()


def begin(marks: KnownFiles, call_id: str) -> list[EventDraft]:
    marks.begin_command(call_id)
    return marks.take()


@pytest.fixture
def marks(tmp_path: Path) -> KnownFiles:
    return KnownFiles(tmp_path)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.md"
    path.write_text("first")
    return path


def touch(path: Path, text: str | None = None, *, seconds: int = 5) -> None:
    if text is not None:
        path.write_text(text)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + seconds * 10**9))


def test_a_file_that_changed_since_it_was_read_is_stale_once(marks, plan):
    """N-52, and B.12-15: it was only noticed when the file was read again."""
    marks.remember("plan.md")
    touch(plan, "other")

    (happening,) = look(marks)

    assert happening.type == "source.stale"
    assert happening.payload["path"] == "plan.md"
    assert happening.payload["previous_hash"] != happening.payload["current_hash"]
    assert look(marks) == []


def test_a_time_alone_makes_nothing_stale(marks, plan):
    """N-52, and B.12-15: a touch was enough."""
    marks.remember("plan.md")
    touch(plan)

    assert look(marks) == []


def test_a_change_back_to_what_was_read_is_none(marks, plan):
    """N-52."""
    marks.remember("plan.md")
    touch(plan, "other")
    touch(plan, "first")

    assert look(marks) == []


def test_the_agents_own_edit_makes_nothing_stale(marks, plan):
    """N-52, and B.12-15: its own edit was told to it."""
    marks.remember("plan.md")
    touch(plan, "its own")
    marks.remember(str(plan))

    assert look(marks) == []
    assert len(marks) == 1


def test_what_a_command_of_the_agents_own_changes_is_not_stale(marks, plan, tmp_path):
    """N-52: by whatever it is changed, its own edits do not count; nor does what it removes."""
    gone = tmp_path / "gone.md"
    gone.write_text("x")
    for name in ("plan.md", "gone.md"):
        marks.remember(name)

    assert begin(marks, "c1") == []
    touch(plan, "its own")
    gone.unlink()
    marks.end_commands(["c1"])

    assert look(marks) == []
    assert len(marks) == 1


def test_what_others_change_before_and_after_a_command_is_stale(marks, plan):
    """N-52."""
    marks.remember("plan.md")
    touch(plan, "of others")
    assert types(*begin(marks, "c1")) == ["source.stale"]
    touch(plan, "its own", seconds=10)
    marks.end_commands(["c1"])
    touch(plan, "of others again", seconds=15)

    assert types(*look(marks)) == ["source.stale"]


def test_commands_side_by_side_are_one_time_in_which_changes_are_its_own(marks, plan):
    """N-52: the calls of a batch run at once."""
    marks.remember("plan.md")
    begin(marks, "c1")
    touch(plan, "of the first")
    assert begin(marks, "c2") == [], "the first may have done it"
    marks.end_commands(["c1"])
    touch(plan, "of the second", seconds=10)
    assert look_at(marks, "plan.md") == [], "an edit in the same batch"
    touch(plan, "of the second again", seconds=15)
    marks.end_commands(["c2", "c2", "never begun"])

    assert look(marks) == []
    touch(plan, "of others", seconds=20)
    assert types(*look(marks)) == ["source.stale"]


async def test_what_was_found_while_a_hook_took_too_long_is_told_by_the_next(marks, plan):
    """N-52, C.3: the thread that looks goes on when whoever waits for it is cancelled."""
    marks.remember("plan.md")
    touch(plan, "of others")
    with marks._lock:
        hook = asyncio.create_task(asyncio.to_thread(marks.check_all), name="hook")
        await asyncio.sleep(0)
        hook.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hook
    assert types(*await asyncio.to_thread(look, marks)) == ["source.stale"]


def test_a_command_whose_end_was_never_heard_of_hides_nothing(marks, plan):
    """N-52: told once too often is better than never."""
    marks.remember("plan.md")
    begin(marks, "c1")
    touch(plan, "of whom?")

    assert types(*look(marks)) == ["source.stale"]
    touch(plan, "of others", seconds=10)
    assert types(*begin(marks, "c2")) == ["source.stale"]


def test_what_there_was_too_much_of_to_read_before_a_command_is_not_its_own(marks, tmp_path, monkeypatch):
    """N-52."""
    monkeypatch.setattr(staleness, "MAX_CHECKED_BYTES", 10)
    for name in "abcd":
        (tmp_path / name).write_text("x" * 8)
        marks.remember(name)
        touch(tmp_path / name, "y" * 8)

    assert len(begin(marks, "c1")) == 2
    touch(tmp_path / "a", "z" * 8, seconds=20)
    assert types(*look_at(marks, "d")) == ["source.stale"]
    marks.end_commands(["c1"])

    assert [each.payload["path"] for each in look(marks)] == ["c"]


def test_what_a_command_changed_and_is_too_much_to_read_is_watched_no_more(marks, tmp_path, monkeypatch):
    """N-52."""
    for name in "abcd":
        (tmp_path / name).write_text("x" * 8)
        marks.remember(name)
    begin(marks, "c1")
    for name in "abcd":
        touch(tmp_path / name, "y" * 8)
    monkeypatch.setattr(staleness, "MAX_CHECKED_BYTES", 10)
    marks.end_commands(["c1"])

    assert len(marks) == 2
    assert look(marks) == []


def test_files_are_looked_at_while_others_become_known(marks, tmp_path):
    """N-52: hooks of one batch run at once, each in a thread."""
    names = [f"f{number}" for number in range(40)]
    for name in names:
        (tmp_path / name).write_text(name)
        marks.remember(name)

    def work(number: int) -> None:
        for name in names:
            marks.remember(name)
            look_at(marks, name)
            begin(marks, f"{name}-{number}")
            marks.end_commands([f"{name}-{number}"])
            look(marks)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))

    assert len(marks) == 40


def test_a_file_is_looked_at_before_it_is_edited(marks, plan):
    """N-52."""
    assert look_at(marks, "plan.md") == [], "it was never read"
    marks.remember("plan.md")
    assert look_at(marks, "plan.md") == []
    touch(plan, "other")
    assert types(*look_at(marks, str(plan))) == ["source.stale"]


def test_a_file_that_is_gone_is_stale_and_then_forgotten(marks, plan):
    """N-52."""
    marks.remember("plan.md")
    plan.unlink()

    (happening,) = look(marks)

    assert happening.payload["current_hash"] == "gone"
    assert happening.payload["message"] == "it is gone"
    assert len(marks) == 0


def test_a_file_that_grew_too_long_is_not_called_gone(marks, plan, monkeypatch):
    """N-52."""
    monkeypatch.setattr(staleness, "MAX_FILE_BYTES", 100)
    marks.remember("plan.md")
    plan.write_text("x" * 101)

    (happening,) = look(marks)

    assert happening.payload["message"] == "it is now longer than 100 bytes, so its changes are not followed"
    assert happening.payload["current_hash"] == "unread"
    assert len(marks) == 0


def test_a_file_that_can_no_longer_be_read_is_not_called_gone(marks, plan, monkeypatch):
    """N-52. The disk is made to fail: the rights of a file do not stop root, who may run this."""
    marks.remember("plan.md")
    touch(plan, "other")
    monkeypatch.setattr(staleness, "read_plain", Mock(side_effect=PermissionError))

    (happening,) = look(marks)

    assert happening.payload["message"] == "it can no longer be read"


def test_links_pipes_folders_and_long_files_are_not_remembered(marks, plan, tmp_path, monkeypatch):
    """N-52: nothing is followed or waited for."""
    monkeypatch.setattr(staleness, "MAX_FILE_BYTES", 100)
    (tmp_path / "link").symlink_to(plan)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "long").write_text("x" * 101)

    for name in ("link", "pipe", "folder", "long", "nowhere", "a\0b"):
        marks.remember(name)

    assert len(marks) == 0


def test_a_file_that_became_a_link_or_a_pipe_is_stale_and_not_followed(marks, plan, tmp_path):
    """N-52."""
    other = tmp_path / "other"
    other.write_text("b")
    for name in ("plan.md", "other"):
        marks.remember(name)
    plan.unlink()
    plan.symlink_to("/etc/passwd")
    other.unlink()
    os.mkfifo(other)

    stale = look(marks)
    assert [each.payload["current_hash"] for each in stale] == ["gone", "gone"]
    assert {each.payload["message"] for each in stale} == {"it is no longer a plain file"}


def test_the_files_used_last_are_remembered_and_no_more_than_a_number(marks, tmp_path, monkeypatch):
    """N-52."""
    monkeypatch.setattr(staleness, "MAX_FILES", 3)
    for name in ("a", "b", "c", "a", "d"):
        (tmp_path / name).write_text(name)
        marks.remember(name)

    assert len(marks) == 3
    for name in "abcd":
        touch(tmp_path / name, "changed")
    assert [each.payload["path"] for each in look(marks)] == ["c", "a", "d"]


def test_one_look_reads_so_much_and_the_next_reads_the_rest(marks, tmp_path, monkeypatch):
    """N-52."""
    monkeypatch.setattr(staleness, "MAX_CHECKED_BYTES", 10)
    for name in "abcd":
        (tmp_path / name).write_text("x" * 8)
        marks.remember(name)
        touch(tmp_path / name, "y" * 8)

    assert [len(look(marks)) for _ in range(3)] == [2, 2, 0]


def test_what_one_run_has_read_is_nothing_to_another(marks, plan, tmp_path):
    """N-52, and B.12-15: one memory for all sessions."""
    marks.remember("plan.md")
    other = KnownFiles(tmp_path)
    touch(plan, "other")

    assert look(other) == []
    assert len(look(marks)) == 1
