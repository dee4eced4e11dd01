"""What a turn costs in tokens, by part: the first request of a chat in main, and of a worker's cycle."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from agent_runner.wire.order import RunOrder
from benchmarks.figures import Check, Figure, Series
from benchmarks.places import Effort
from orchestrator.context.tokens import EncodingCounter
from tests.doubles.messages_api import Recorded, Say, ScriptedMessagesApi
from tests.doubles.request_parts import tokens_by_part
from tests.processes.runner import RunnerProcess, make_workspace
from tests.support.priced_turns import FOLLOW_UP, main_order, prepare_main, worker_order

CHAT_TOKENS, OWN_TOOL_TOKENS, WORKER_TOKENS, FOLLOW_UP_TOKENS = 9_000, 3_500, 2_500, 300
OF_THE_FOLLOW_UP = "what a follow-up adds to its message"


async def measure(effort: Effort) -> list[Figure]:
    """Count once: the same request is the same tokens each time."""
    del effort
    count = EncodingCounter().count
    first, second = await asyncio.to_thread(_requests, main_order(), FOLLOW_UP)
    (cycle,) = await asyncio.to_thread(_requests, worker_order())
    chat, worker = tokens_by_part(first.body, count), tokens_by_part(cycle.body, count)
    added = sum(tokens_by_part(second.body, count).values()) - sum(chat.values()) - count(FOLLOW_UP)
    return [
        _figure(
            "A first message in main",
            chat,
            Check(what="in all", value=sum(chat.values()), limit=CHAT_TOKENS, unit="tokens"),
            Check(what="own tools", value=chat["own tools"], limit=OWN_TOOL_TOKENS, unit="tokens"),
            Check(what=OF_THE_FOLLOW_UP, value=added, limit=FOLLOW_UP_TOKENS, unit="tokens"),
        ),
        _figure(
            "A cycle of the worker",
            worker,
            Check(what="in all", value=sum(worker.values()), limit=WORKER_TOKENS, unit="tokens"),
        ),
    ]


def _figure(name: str, parts: dict[str, int], *checks: Check) -> Figure:
    return Figure(
        name=name,
        measured=_series("in all", sum(parts.values())),
        details=tuple(_series(part, tokens) for part, tokens in parts.items()),
        checks=checks,
    )


def _series(name: str, tokens: int) -> Series:
    return Series(name=name, unit="tokens", values=(tokens,))


def _requests(order: RunOrder, *follow_ups: str) -> list[Recorded]:
    """Have the real runner ask a scripted API, once for the order and once for each follow-up."""
    with tempfile.TemporaryDirectory() as root, ScriptedMessagesApi(default=Say("Done.")) as api:
        workspace = make_workspace(Path(root) / "workspace")
        if order.is_main:
            prepare_main(workspace)
        environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "sk-ant-api03-benchmark"}
        with RunnerProcess(workspace, order, environment=environment) as runner:
            runner.wait_for("turn_end", turn=1)
            for turn, text in enumerate(follow_ups, start=2):
                runner.ask(turn, text)
                runner.wait_for("turn_end", turn=turn)
        return api.turns
