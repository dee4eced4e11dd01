"""The agent of a simulated world that asks a model: in the place of the SDK and the CLI.

It asks the proxy for streams, with the token of its run, tries again as the CLI does, calls the tools that
the model wants through the real tool server, and ends a turn as the real one would.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.interfaces import Say, TokenUsage, TurnOutcome
from agent_runner.ipc_client import HostClient
from agent_runner.progress import TurnProgress
from agent_runner.tools.mcp_server import ToolServer
from agent_runner.wire.order import RestoreMode, RunOrder, TurnOrder
from agent_runner.workspace import Workspace
from tests.simulation.engine import CONTAINER
from tests.simulation.services import MODEL, WORD

MOST_TRIES = 11
"""The CLI asks ten times more."""
MOST_CALLS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The outcome of a request: the parts of an answer, or why there is none."""

    parts: tuple[dict[str, Any], ...] = ()
    error: str | None = None
    may_try_again: bool = False
    wait_seconds: float = 0.0


class ModelAgent:
    """Answers turns with what a model says."""

    session_id: str | None = None

    def __init__(
        self,
        order: RunOrder,
        workspace: Workspace,
        host: HostClient,
        noticing: LazyNotices,
        progress: TurnProgress | None = None,
        *,
        started: object = None,
    ) -> None:
        self._order = order
        self._progress = progress or TurnProgress()
        self._tools = ToolServer(order, host, noticing)
        self._container = CONTAINER.get()
        self._chance = random.Random(f"{self._container.run_id}:agent")
        self._is_started = False

    @property
    def restored(self) -> RestoreMode | None:
        return self._order.restore.mode if self._is_started else None

    async def start(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.1, 1.0))  # a CLI boots
        self._is_started = True

    async def begin(self, order: RunOrder) -> bool:
        self._order = order
        return self._is_started

    async def answer(self, turn: TurnOrder, say: Say) -> TurnOutcome:
        """Ask until the model has said something, and do what it wants done before."""
        self._tools.turn = turn.turn
        parts = [{"type": "text", "text": text} for text in (turn.prompt or ".", _wish(turn))]
        messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
        for _ in range(MOST_CALLS):
            reply = await self._ask(messages)
            if reply.error is not None:
                return TurnOutcome(error=f"API Error: {reply.error}", code="agent")
            calls = [part for part in reply.parts if part["type"] == "tool_use"]
            if not calls:
                for part in reply.parts:
                    await say(part["text"])
                return TurnOutcome(usage=TokenUsage(model=MODEL, input_tokens=20, output_tokens=9))
            results = [await self._call(call) for call in calls]
            messages += [
                {"role": "assistant", "content": list(reply.parts)},
                {"role": "user", "content": results},
            ]
        return TurnOutcome(error="It called tools without end.", code="agent")

    async def close(self) -> None:
        pass

    async def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        """Carry out a call as the SDK does, through the real server of tools."""
        name, given = call["name"], call["input"]
        self._progress.tool_started(call["id"], f"mcp__andy__{name}", given)
        message = {"id": 1, "method": "tools/call", "params": {"name": name, "arguments": given}}
        answered = await self._tools.answer(message)
        assert answered is not None
        result = answered["result"]
        self._progress.tool_ended(call["id"], ok=not result["isError"])
        return {
            "type": "tool_result",
            "tool_use_id": call["id"],
            "content": result["content"][0]["text"],
            "is_error": result["isError"],
        }

    async def _ask(self, messages: list[dict[str, Any]]) -> Reply:
        """Ask as the CLI does: again after trouble, unless the answer says that it does not help."""
        reply = Reply()
        for number in range(MOST_TRIES):
            if number:
                pause = min(0.5 * 2 ** (number - 1), 32.0) * (1 + self._chance.random() * 0.25)
                await asyncio.sleep(max(pause, reply.wait_seconds))
            try:
                reply = await self._post(messages)
            except (OSError, TimeoutError) as error:
                reply = Reply(error=f"Connection error ({error}).", may_try_again=True)
            if not reply.may_try_again:
                break
        return reply

    async def _post(self, messages: list[dict[str, Any]]) -> Reply:
        container = self._container
        content = {
            "model": self._order.model or MODEL,
            "max_tokens": 1000,
            "stream": True,
            "messages": messages,
        }
        body = json.dumps(content).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-api-key": container.environment["ANTHROPIC_API_KEY"],
            "anthropic-version": "2023-06-01",
            "user-agent": "claude-cli",
        }
        wire = container.engine.wire
        assert wire is not None
        async with wire.post(f"10.0.0.{container.ref}", "/v1/messages", headers, body) as answer:
            text = await answer.body()
        should = answer.headers.get("x-should-retry")
        after = answer.headers.get("retry-after", "")
        reply = _read(answer.status, text)
        if reply.error is None:
            return reply
        is_passing = answer.status in (200, 408, 409, 429) or answer.status >= 500
        may_try_again = should != "false" and (should == "true" or is_passing)
        wait_seconds = float(after) if after.isdigit() and float(after) <= 60 else 0.0
        return Reply(error=reply.error, may_try_again=may_try_again, wait_seconds=wait_seconds)


def _wish(turn: TurnOrder) -> str:
    """Return what is asked in a turn, a line each: what a model would read out of the prompt."""
    if turn.requests:
        return "\n".join(_bare(one.text) for one in turn.requests)
    return "\n".join(line for line in turn.prompt.splitlines() if WORD.search(line)) or "Nothing."


def _bare(text: str) -> str:
    return " ".join(text.replace("@Andy", "").split())


def _read(status: int, text: bytes) -> Reply:
    """Read an answer as the SDK of the service does: a stream without its end is no answer."""
    if status != 200:
        return Reply(error=f"{status} {text.decode(errors='replace')[:200]}")
    events = [json.loads(line[5:]) for line in text.split(b"\n") if line.startswith(b"data:")]
    if failed := next((event["error"] for event in events if event["type"] == "error"), None):
        return Reply(error=str(failed.get("message")))
    if not any(event["type"] == "message_stop" for event in events):
        return Reply(error="the stream broke off")
    return Reply(parts=tuple(_parts(events)))


def _parts(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the parts of an answer, which come as a beginning and pieces."""
    for begun in (event for event in events if event["type"] == "content_block_start"):
        deltas = [
            event["delta"]
            for event in events
            if event["type"] == "content_block_delta" and event["index"] == begun["index"]
        ]
        if begun["content_block"]["type"] == "text":
            yield {"type": "text", "text": "".join(delta["text"] for delta in deltas)}
        else:
            given = "".join(delta["partial_json"] for delta in deltas)
            yield {**begun["content_block"], "input": json.loads(given)}
