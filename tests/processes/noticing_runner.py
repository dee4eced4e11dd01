"""The real runner, whose events are written down as it emits them."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from agent_runner.wire.frames import TurnEnd
from agent_runner.wire.mailbox import AcknowledgeNotice, CancelNotice, Command, NotifySelf
from agent_runner.wire.notices import DeliveredNotice, Notice
from agent_runner.wire.order import RunOrder
from agent_runner.workspace import Workspace
from tests.doubles.messages_api import Recorded, ScriptedMessagesApi
from tests.processes.forked_programs import forked
from tests.processes.runner import RunnerProcess, SharedRun

PROGRAM = """
import json, sys
from agent_runner import __main__
from agent_runner.agents.claude.sdk_import import import_sdk
import_sdk()  # as the runner does: a plain import of the SDK, which the hooks ask for, takes 1.5 s longer
from agent_runner.ans import lazy_notices, sdk_hooks

bound, sdk_hooks.ANSWER_SECONDS = sdk_hooks.ANSWER_SECONDS, 20.0

make = lazy_notices._make
events = open({events!r}, "a", buffering=1)

def recording(order, workspace):
    rules = make(order, workspace)
    queue, emit = rules.notices.events, rules.notices.events.emit

    def emit_recorded(event):
        events.write(json.dumps(event.to_dict()) + "\\n")
        emit(event)

    queue.emit = emit_recorded
    return rules

lazy_notices.LazyNotices.__init__.__kwdefaults__["make"] = recording
{more}
sys.exit(__main__.main())
"""
"""A busy machine may take longer than the bound of a hook: only those that try that bound keep it."""
STUCK = """
import asyncio
from agent_runner.ans import rules
drain, calls = rules.NoticeRules.drain, []

async def stuck(self, point, **more):
    calls.append(point)
    if len(calls) == 1:
        await asyncio.Event().wait()
    return await drain(self, point, **more)

rules.NoticeRules.drain = stuck
sdk_hooks.ANSWER_SECONDS = bound
"""
"""The first point at which notices are told never ends."""
UID, GID = os.getuid() or 1000, os.getgid() or 1000
"""Whom a container runs as: nobody's root."""
OPEN = "<system_notification>"


class NoticingRunner(RunnerProcess):
    """A runner for one scripted API. `more` is Python that is run in it before it begins."""

    def __init__(
        self, workspace: Workspace, order: RunOrder, api: ScriptedMessagesApi | None = None, *, more: str = ""
    ) -> None:
        self._events = workspace.root / "events.jsonl"
        self._past = 0
        url = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "placeholder"} if api else {}
        super().__init__(workspace, order, environment=url, command=self._program(workspace, more))

    def _program(self, workspace: Workspace, more: str) -> tuple[str, ...]:
        return forked("runner", "-c", PROGRAM.format(events=str(self._events), more=more))

    def events(self, event_type: str | None = None) -> list[dict[str, Any]]:
        """Return what was emitted until now, in order, all of it or of one type."""
        return [event for event in self._emitted()[self._past :] if event_type in (None, event["type"])]

    def forget_events(self) -> None:
        """Return no event any more that was emitted until now."""
        self._past = len(self._emitted())

    def _emitted(self) -> list[dict[str, Any]]:
        text = self._events.read_text() if self._events.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def payloads(self, event_type: str) -> list[dict[str, Any]]:
        return [event["payload"] for event in self.events(event_type)]

    def ended(self, turn: int) -> TurnEnd:
        frame = self.wait_for("turn_end", turn=turn)
        assert isinstance(frame, TurnEnd)
        return frame

    def told(self, turn: int) -> tuple[DeliveredNotice, ...]:
        return self.ended(turn).told

    def keep(self, notice_id: int) -> NotifySelf:
        """Do as the host does with the next note: keep it."""
        command = self._asked()
        assert isinstance(command, NotifySelf), command
        self.reply(command, f"Notice {notice_id} is kept.", data={"id": notice_id})
        return command

    def agree(self) -> AcknowledgeNotice | CancelNotice:
        command = self._asked()
        assert isinstance(command, AcknowledgeNotice | CancelNotice), command
        self.reply(command, "Done.")
        return command

    def _asked(self) -> Command:
        return self.request(self.workspace.tasks)


class SharedNoticingRun(SharedRun[NoticingRunner]):
    """A run whose tests see only the events of their own turns."""

    def begin(self) -> None:
        super().begin()
        self.runner.forget_events()

    def told(self, prompt: str, *notices: Notice) -> tuple[DeliveredNotice, ...]:
        """Put a turn before the agent; return what it was told in it."""
        return self.runner.told(self.ask(prompt, *notices))


class ContainedRunner(NoticingRunner):
    """The same in a container of the agent image, confined as agents are, but on the host's network."""

    def __init__(
        self, image: str, workspace: Workspace, order: RunOrder, api: ScriptedMessagesApi, **more: str
    ) -> None:
        self._image = image
        self._name = f"andy-notices-{secrets.token_hex(6)}"
        for path in (workspace.root, *workspace.root.rglob("*")):
            os.chown(path, UID, GID)
        super().__init__(workspace, order, api, **more)

    def _program(self, workspace: Workspace, more: str) -> tuple[str, ...]:
        program = PROGRAM.format(events=f"/workspace/{self._events.name}", more=more)
        confined = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/tmp")
        home = f"--tmpfs=/home/andy/.claude:uid={UID},gid={GID}"
        mounted = ("--volume", f"{workspace.root}:/workspace", "--network=host")
        given = ("--env=ANTHROPIC_BASE_URL", "--env=ANTHROPIC_API_KEY", f"--user={UID}:{GID}")
        started = ("docker", "run", "--rm", "--interactive", "--init", f"--name={self._name}")
        python = ("--entrypoint=/opt/andy/bin/python", self._image, "-c", program)
        return (*started, *confined, home, *mounted, *given, *python)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["docker", "rm", "--force", self._name], capture_output=True, check=False)
        super().__exit__(kind, error, trace)


def with_notices(order: RunOrder, notices: Iterable[Notice]) -> RunOrder:
    """Give the first turn of an order notices of the host."""
    return order.model_copy(update={"turn": order.turn.model_copy(update={"notices": tuple(notices)})})


def a_notice(notice_id: int, message: str, **more: Any) -> Notice:
    """A note to itself, as the host gives it back."""
    fields: dict[str, Any] = {
        "event_type": "agent.self.notify",
        "source": "agent",
        "payload": {"message": message, "category": "context", "priority": more.get("priority", "normal")},
    }
    return Notice(id=notice_id, **(fields | more))


def notices_blocks(request: Recorded) -> list[str]:
    """What was put before the model in a request, a block a hook."""
    texts = (
        block.get("text", "")
        for message in request.body["messages"]
        for block in (message["content"] if isinstance(message["content"], list) else [])
    )
    return [text[text.index(OPEN) :] for text in texts if OPEN in text]


def whole_text(request: Recorded) -> str:
    """All that a model was given of a conversation, system messages within it and results of tools too."""
    return json.dumps(request.body.get("messages", []), ensure_ascii=False)
