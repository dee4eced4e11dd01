"""Hold a dialogue with a model as the host would, and judge it by the tools that it called.

Real are the runner, the CLI, the host's dispatcher and its store; the model is the one at the given address.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_runner.wire.files import write_whole
from agent_runner.wire.order import RunOrder, TurnOrder
from agent_runner.workspace import Workspace
from orchestrator.dashboard.views.board import brief
from orchestrator.dashboard.words import when
from orchestrator.domain.dashboard import Deadline
from orchestrator.domain.values import Run, Turn
from orchestrator.inbound import prompt
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns
from tests.processes.runner import RUN, RunnerProcess
from tests.support.dashboard_harness import DAY_MS, FOLDER, HOUR_MS, DashboardHarness, alert, blog
from tests.support.priced_turns import prepare_main
from tests.support.store_harness import SEOUL

TABLE = Path(__file__).with_name("dialogues.toml")
MINUTE_MS = 60_000
TURN_SECONDS = 300
_OWN = re.compile(r"^mcp__\w+?__")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCall:
    """A tool that has to be called: its name, a pattern for each argument, and when it is to be due."""

    tool: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """One thing that somebody says, and what a good agent does about it."""

    name: str
    said: str
    is_main: bool = False
    calls: tuple[ExpectedCall, ...] = ()
    never: tuple[str, ...] = ()
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool that was called: its name without that of its server, and what it was given."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueOutcome:
    """What a model did: its calls in order, its answer, and the time at which it was asked."""

    calls: tuple[ToolCall, ...]
    answer: str
    asked_ms: int


def read_dialogues() -> list[Dialogue]:
    """Return the dialogues of the table. Raises `TypeError` for a key that is none."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["dialogue"]
    return [_dialogue(row) for row in rows]


def _dialogue(row: dict[str, Any]) -> Dialogue:
    calls = [
        ExpectedCall(tool=call.pop("tool"), arguments=call.pop("with", {}), **call)
        for call in row.pop("calls", [])
    ]
    return Dialogue(calls=tuple(calls), never=tuple(row.pop("never", ())), **row)


def mistakes(dialogue: Dialogue, done: DialogueOutcome) -> list[str]:
    """Say what is wrong with what a model did, a line each; nothing where it is as expected. Pure."""
    found = [
        f"{expected.tool} was not called as expected: {_shown(expected)}"
        for expected in dialogue.calls
        if not any(_fits(expected, call, done.asked_ms) for call in done.calls)
    ]
    found += [f"{call.tool} was called" for call in done.calls if call.tool in dialogue.never]
    if dialogue.answer == "SILENT" and done.answer.strip() != "SILENT":
        found.append(f"something was said: {done.answer[:200]!r}")
    elif dialogue.answer is not None and not re.search(dialogue.answer, done.answer, re.IGNORECASE):
        found.append(f"the answer does not match {dialogue.answer!r}: {done.answer[:200]!r}")
    return found


def _shown(expected: ExpectedCall) -> str:
    due = f", due {expected.at}" if expected.at else ""
    return f"{dict(expected.arguments)}{due}"


def _fits(expected: ExpectedCall, call: ToolCall, asked_ms: int) -> bool:
    if not re.fullmatch(expected.tool, call.tool):
        return False
    for name, pattern in expected.arguments.items():
        value = call.arguments if name == "*" else call.arguments.get(name, "")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if not re.search(pattern, text, re.IGNORECASE):
            return False
    return expected.at is None or _is_due(str(call.arguments.get("scheduled_at")), expected.at, asked_ms)


def _is_due(given: str, expected: str, asked_ms: int) -> bool:
    try:
        times = [when.parse_due_time(text, now_ms=asked_ms, zone=SEOUL).at_ms for text in (given, expected)]
    except Exception:  # noqa: BLE001 - whatever it is that cannot be read, it is not that time
        return False
    return abs(times[0] - times[1]) <= 2 * MINUTE_MS


async def hold(
    dialogue: Dialogue,
    home: DashboardHarness,
    workspace: Workspace,
    *,
    environment: dict[str, str],
    model: str | None = None,
) -> DialogueOutcome:
    """Ask a model what the dialogue says, and return what it did. `environment` has its address and key."""
    prepare_main(workspace)
    asked_ms = home.clock.wall_ms = round(time.time() * 1000)
    await _fill(home)
    await home.harness.hear(f"@Andy {dialogue.said}", sent_ms=asked_ms)
    turn = (await home.harness.queued())[0]
    run = await home.harness.begin_run()
    order = RunOrder(
        run=RUN,
        group=FOLDER,
        chat_jid=f"local:{FOLDER}",
        is_main=dialogue.is_main,
        timezone=SEOUL.key,
        agent="claude",
        model=model,
        turn=await _compose(home, turn, run),
    )
    with RunnerProcess(workspace, order, environment=environment) as runner:
        host = asyncio.create_task(_answer_requests(home, workspace), name="host of the dialogue")
        try:
            end = await asyncio.to_thread(runner.wait_for, "turn_end", seconds=TURN_SECONDS)
        finally:
            host.cancel()
        if end.status != "success":
            raise RuntimeError(f"the model did not answer: {end.error}")
        return DialogueOutcome(
            calls=tuple(_calls(workspace)),
            answer="\n".join(filter(None, runner.results(turn.id))) or "SILENT",
            asked_ms=asked_ms,
        )


async def _fill(home: DashboardHarness) -> None:
    now_ms = home.clock.wall_ms
    times = {"created_ms": now_ms - 5 * DAY_MS, "updated_ms": now_ms, "last_update_ms": now_ms - HOUR_MS}
    until = Deadline(at_ms=now_ms + 9 * DAY_MS, date=None, text="in nine days")
    await home.put(
        blog(id="task_blog", deadline=until, **times),
        blog(id="task_trip", title="Plan the trip to Busan", pct=20, deadline=None, **times),
        alert(id="n_dentist", message="Dentist!", type="reminder", task_id=None, due_ms=now_ms + 3 * DAY_MS),
    )
    made = await home.call_tool(
        "create_question", question="Who books the train?", related_task_id="task_trip"
    )
    await home.harness.rows("UPDATE questions SET id = 'q_train' WHERE id = ?", made.data["id"])


async def _compose(home: DashboardHarness, turn: Turn, run: Run) -> TurnOrder:
    async def told(tx: Any, turn: Turn, _: Any) -> str | None:
        return await brief(tx, turn, zone=SEOUL, now_ms=home.clock.now_ms())

    async with home.harness.database.transaction() as tx:
        group = await groups.known(tx, FOLDER)
        order = await prompt.compose(
            tx, turn, group, run_id=run.id, name="Andy", zone=SEOUL, now_ms=home.clock.now_ms(), brief=told
        )
        await turns.start(tx, turn.id, run.id, now_ms=home.clock.now_ms())
    return order.model_copy(update={"run": RUN})


async def _answer_requests(home: DashboardHarness, workspace: Workspace) -> None:
    """Carry out what the agent asks, as the host does, until cancelled."""
    while True:
        for path in sorted([*workspace.tasks.glob("*.json"), *workspace.messages.glob("*.json")]):
            body = path.read_bytes()
            path.unlink()
            reply = await home.dispatcher.handle(await home.group(), path.name, body)
            write_whole(workspace.replies / f"{reply.request_id}.json", reply.to_json())
        await asyncio.sleep(0.02)


def _calls(workspace: Workspace) -> list[ToolCall]:
    """Read the calls off the transcript that the CLI keeps."""
    transcripts = sorted((workspace.root / "home" / ".claude" / "projects").glob("*/*.jsonl"))
    lines = "\n".join(path.read_text(encoding="utf-8") for path in transcripts).splitlines()
    contents = [(json.loads(line).get("message") or {}).get("content") for line in lines]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [
        ToolCall(tool=_OWN.sub("", block["name"]), arguments=block["input"])
        for block in blocks
        if block.get("type") == "tool_use"
    ]
