"""A task's check, in a real shell."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent_runner import checks
from agent_runner.checks import CheckResult, run_check
from agent_runner.wire.order import TurnOrder
from tests.support.process_checks import is_alive
from tests.support.until import until


def turn(check: str) -> TurnOrder:
    return TurnOrder(run="r", turn=1, kind="task", prompt="Look at it.", check=check)


def failure(verdict: CheckResult) -> str:
    assert verdict.turn is None
    assert verdict.outcome is not None
    assert verdict.outcome.code == "check"
    return verdict.outcome.error or ""


async def test_nothing_to_do_ends_the_turn_well_and_silently() -> None:
    verdict = await run_check(turn("echo looking; echo '{\"wakeAgent\": false}'; echo"))
    assert verdict.turn is None
    assert verdict.outcome is not None
    assert (verdict.outcome.error, verdict.outcome.note) == (None, "the check found nothing to do")


async def test_data_joins_the_prompt() -> None:
    verdict = await run_check(turn('echo \'{"wakeAgent": true, "data": {"새 글": 3}}\''))
    assert verdict.turn is not None
    assert verdict.turn.prompt.startswith("Look at it.\n\n")
    assert '"새 글": 3' in verdict.turn.prompt


async def test_without_data_the_prompt_is_as_it_was() -> None:
    verdict = await run_check(turn("echo '{\"wakeAgent\": true}'"))
    assert verdict.turn is not None
    assert verdict.turn.prompt == "Look at it."


async def test_half_a_character_in_what_a_check_found_becomes_a_question_mark() -> None:
    verdict = await run_check(turn('echo \'{"wakeAgent": true, "data": "a \\ud83d"}\''))
    assert verdict.turn is not None
    assert verdict.turn.prompt.endswith('"a ?"')


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 3", "code 3"),
        ("echo '{\"wakeAgent\": false}'; exit 1", "code 1"),
        ("true", "it is nothing"),
        ("echo done", "it is 'done'"),
        ("echo '{\"wakeAgent\": 1}'", "wakeAgent"),
        ("echo '[true]'", "wakeAgent"),
        ("echo '{\"wakeAgent\": true}'; echo oops", "'oops'"),
        ("printf '\\xff\\xfe'", "wakeAgent"),
        ("printf '[%.0s' {1..100000}", "wakeAgent"),
        ("no-such-command-here", "code 127"),
        ("yes", "more than 1024 KiB"),
        ("kill -9 $$", "code -9"),
        ("if", "code 2"),
        ("echo \0", "no program can be given"),
        ("echo \ud800", "no program can be given"),
    ],
)
async def test_whatever_else_happens_is_a_failure_with_its_reason(script: str, told: str) -> None:
    assert told in failure(await run_check(turn(script)))


async def until_dead(pid: int) -> None:
    await until(lambda: not is_alive(pid), f"process {pid} is dead")


async def test_one_that_takes_too_long_is_ended_with_all_its_children(tmp_path: Path) -> None:
    script = "sleep 600 & echo $! > child; wait"
    verdict = await run_check(turn(script), cwd=tmp_path, seconds=2)  # time enough for it to begin
    assert "longer than 2 s" in failure(verdict)
    await until_dead(int((tmp_path / "child").read_text()))


async def test_a_child_that_stays_behind_is_ended(tmp_path: Path) -> None:
    script = "sleep 600 >&- 2>&- & echo $! > child; echo '{\"wakeAgent\": false}'"
    assert (await run_check(turn(script), cwd=tmp_path)).outcome
    await until_dead(int((tmp_path / "child").read_text()))


async def test_cancelled_it_leaves_nothing_behind(tmp_path: Path) -> None:
    job = asyncio.create_task(run_check(turn("echo $$ > pid; exec sleep 600"), cwd=tmp_path), name="check")
    pid = tmp_path / "pid"
    await until(lambda: pid.exists() and pid.read_text(), "the script runs")
    job.cancel()
    await asyncio.wait([job])
    assert job.cancelled()
    await until_dead(int(pid.read_text()))


async def test_it_reads_nothing_and_sees_no_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "secret")
    script = "cat; env > seen; pwd > where; echo '{\"wakeAgent\": false}'"
    assert (await run_check(turn(script), cwd=tmp_path)).outcome
    assert "secret" not in (tmp_path / "seen").read_text()
    assert (tmp_path / "where").read_text().strip() == str(tmp_path)


async def test_a_container_without_bash_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "cannot be started" in failure(await run_check(turn("true")))


def test_a_check_has_half_a_minute_and_a_mebibyte() -> None:
    assert (checks.CHECK_SECONDS, checks.MAX_OUTPUT_BYTES) == (30, 2**20)
