"""Run a task's check: a script that can report that there is nothing to do, before any model is asked."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runner.interfaces import TurnOutcome
from agent_runner.wire.order import TurnOrder
from agent_runner.wire.processes import kill_and_wait

CHECK_SECONDS = 30.0
"""Seconds that a check may take."""
MAX_OUTPUT_BYTES = 1024 * 1024
"""Most bytes that a check may print; it fails beyond that."""
MAX_SHOWN_CHARS = 120
"""Most characters of a check's last line in the reason why it failed."""
NOTHING_TO_DO = "the check found nothing to do"
_OWN_TO_THE_AGENT = ("ANTHROPIC_", "CLAUDE_")
"""Prefixes of variables that are for the agent alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The decision of a check: the turn to answer, or the outcome without an answer."""

    turn: TurnOrder | None = None
    outcome: TurnOutcome | None = None


async def run_check(
    turn: TurnOrder, *, cwd: Path | None = None, seconds: float = CHECK_SECONDS
) -> CheckResult:
    """Run the check of a turn, a bash script, and return its decision.

    The last line that it prints is `{"wakeAgent": bool, "data": …}`: whether the agent is to answer the turn,
    and data that is added to the prompt. A check that fails, prints something else or too much, or takes
    longer than `seconds` ends the turn as failed. If this is cancelled, no process is left. `cwd` is the
    script's working directory; None is that of this process.
    """
    assert turn.check is not None
    try:
        output = await _output(turn.check, cwd, seconds)
        decision = _decision_in(output)
    except _CheckFailed as failed:
        return CheckResult(outcome=TurnOutcome(error=f"The check failed: {failed}", code="check"))
    if not decision["wakeAgent"]:
        return CheckResult(outcome=TurnOutcome(note=NOTHING_TO_DO))
    return CheckResult(turn=_with_data(turn, decision.get("data")))


class _CheckFailed(Exception):
    """A check reached no decision; the text is the reason."""


async def _output(script: str, cwd: Path | None, seconds: float) -> bytes:
    """Run a script in the directory `cwd` to its end and return what it printed. Raises `_CheckFailed`."""
    process = await _start_script(script, cwd)
    try:
        async with asyncio.timeout(seconds):
            output = await _read(process)
            code = await process.wait()
    except TimeoutError:
        raise _CheckFailed(f"it took longer than {seconds:g} s.") from None
    finally:
        # Also after success: the script may have left processes in the background.
        # Shielded, so that a cancelled turn leaves no dead process that nobody has waited for.
        await asyncio.shield(kill_and_wait(process, with_group=True))
    if code != 0:
        raise _CheckFailed(f"it ended with code {code}.")
    return output


async def _start_script(script: str, cwd: Path | None) -> asyncio.subprocess.Process:
    """Start a script in the directory `cwd`, in a process group of its own. Raises `_CheckFailed`."""
    try:
        return await asyncio.create_subprocess_exec(
            *("bash", "-c", script),
            cwd=cwd,
            env=_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # A process group of its own, by which `kill_and_wait` also reaches what the script has started.
            start_new_session=True,
        )
    except OSError as error:
        raise _CheckFailed(f"it cannot be started ({error.strerror}).") from error
    except ValueError as error:  # a zero byte, or half of a character
        raise _CheckFailed("it has a character that no program can be given.") from error


async def _read(process: asyncio.subprocess.Process) -> bytes:
    """Return all that the script prints. Raises `_CheckFailed` if it is too much."""
    assert process.stdout is not None
    output = bytearray()
    while chunk := await process.stdout.read(65_536):
        output += chunk
        if len(output) > MAX_OUTPUT_BYTES:
            raise _CheckFailed(f"it printed more than {MAX_OUTPUT_BYTES // 1024} KiB.")
    return bytes(output)


def _environment() -> dict[str, str]:
    """Return this process's environment without the variables that are for the agent alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN_TO_THE_AGENT)}


def _decision_in(output: bytes) -> dict[str, Any]:
    """Return the check's decision: the JSON object in its last line. Raises `_CheckFailed`."""
    lines = output.decode("utf-8", "replace").split("\n")
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    try:
        decision = json.loads(line)
    except (ValueError, RecursionError):
        decision = None
    if not isinstance(decision, dict) or not isinstance(decision.get("wakeAgent"), bool):
        quoted_line = f"'{line[:MAX_SHOWN_CHARS]}'" if line else "nothing"
        raise _CheckFailed(
            f'its last line has to be {{"wakeAgent": true or false}}, and it is {quoted_line}.'
        )
    return decision


def _with_data(turn: TurnOrder, data: Any) -> TurnOrder:
    """Return the turn with the data that its check has found at the end of the prompt; unchanged for None.

    Lone surrogates (halves of a UTF-16 pair), which a model service refuses, become `?`.
    """
    if data is None:
        return turn
    data_json = json.dumps(data, ensure_ascii=False, indent=1).encode("utf-8", "replace").decode("utf-8")
    return turn.model_copy(update={"prompt": f"{turn.prompt}\n\nThe check of this task found:\n{data_json}"})
