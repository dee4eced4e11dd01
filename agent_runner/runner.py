"""One runner: the objects that live as long as the process, after its order is read.

Exit codes: 0 the host closed the run, or a turn was cut off as ordered, or nobody reads any more; 1 the agent
broke (its turn has ended with the reason); 2 the order is unreadable; 143 SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial

from agent_runner.agents.claude.cli_command import StartedCli
from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.checks import run_check
from agent_runner.error_log import log_fault, one_line
from agent_runner.frame_writer import FrameWriter
from agent_runner.inbox import TurnInbox
from agent_runner.interfaces import Agent
from agent_runner.ipc_client import HostClient
from agent_runner.progress import TurnProgress
from agent_runner.session import RunnerSession
from agent_runner.termination import TERMINATED, on_sigterm
from agent_runner.wire.document import WireError
from agent_runner.wire.frames import HEARTBEAT_SECONDS, FailureFrame, Ready
from agent_runner.wire.order import RunOrder
from agent_runner.workspace import Workspace

BAD_ORDER = 2
"""The exit code for an order that cannot be read."""
LAST_WRITE_SECONDS = 0.2
"""Seconds for which a terminated runner waits until its last frames are written."""
LISTENER_SWEEP_SECONDS = 1.0
"""Seconds between two looks whether somebody still reads the frames."""


def run(order_line: bytes, descriptor: int, workspace: Workspace, started: StartedCli | None) -> int:
    """Run the session of a run order, a line of JSON, and return the exit code.

    Frames for the host are written to the file `descriptor`. `started` is a CLI that already runs for this
    order; None if there is none. An order that cannot be read is reported to the host.
    """
    logging.basicConfig(stream=sys.stderr, format="%(name)s: %(levelname)s: %(message)s")
    outlet = FrameWriter(descriptor)
    try:
        order = RunOrder.parse(order_line)
    except WireError as error:
        outlet.put(FailureFrame, code="order", error=f"The order cannot be read: {error}")
        outlet.finish()
        return BAD_ORDER
    outlet.put(Ready)
    return asyncio.run(live(order, workspace, outlet, started))


async def live(
    order: RunOrder, workspace: Workspace, outlet: FrameWriter, started: StartedCli | None = None
) -> int:
    """Run the session of `order` until it ends, SIGTERM comes or stdout breaks; return the exit code.

    `outlet` writes frames for the host to stdout. `started` is a CLI that already runs for this order; None
    if there is none.
    """
    terminated = on_sigterm()
    host = HostClient(workspace)
    inbox = TurnInbox(workspace.input, order.run, handled={order.turn.turn})
    noticing = LazyNotices(order, workspace)
    progress = TurnProgress(outlet if order.progress else None)
    agent = make_agent(order, workspace, host, noticing, progress, started)
    check = partial(run_check, cwd=workspace.group)
    session = RunnerSession(order, agent, inbox, outlet, noticing, progress=progress, check=check)
    session_task = asyncio.create_task(session.run(), name="session")
    other_tasks = (
        asyncio.create_task(session.beat(HEARTBEAT_SECONDS), name="heartbeat"),
        asyncio.create_task(terminated.wait(), name="sigterm"),
        asyncio.create_task(_until_broken(outlet), name="listener"),
    )
    await asyncio.wait((session_task, *other_tasks), return_when=asyncio.FIRST_COMPLETED)
    code = TERMINATED if terminated.is_set() else 0  # 0 if nobody reads the frames any more
    if session_task.done():
        code = _exit_code(session_task, outlet)
    for task in (session_task, *other_tasks):
        task.cancel()
    await asyncio.wait((session_task, *other_tasks))
    host.close()
    # After SIGTERM only for a moment: a host that reads no more must not delay the end.
    await asyncio.to_thread(outlet.finish, LAST_WRITE_SECONDS if terminated.is_set() else None)
    return code


def _exit_code(session_task: asyncio.Task[int], outlet: FrameWriter) -> int:
    """Return the exit code of a session that has ended, from its task; report the error of one that broke.

    The error is reported to the host through `outlet`, and logged.
    """
    error = session_task.exception()
    if error is None:
        return session_task.result()
    log_fault("the runner broke", error)
    outlet.put(FailureFrame, error=one_line(error))
    return 1


def make_agent(
    order: RunOrder,
    workspace: Workspace,
    host: HostClient,
    noticing: LazyNotices,
    progress: TurnProgress,
    started: StartedCli | None,
) -> Agent:
    """Return the agent that the order names.

    `host` sends its requests to the host, `noticing` has the notices of the run, `progress` reports what the
    agent does. `started` is a CLI that already runs for it; None for none. The agents' modules are imported
    here, so that one agent does not load the other.
    """
    if order.agent == "claude":
        from agent_runner.agents.claude.agent import ClaudeAgent

        return ClaudeAgent(order, workspace, host, noticing, progress, started=started)
    from agent_runner.agents.offline import OfflineAgent

    return OfflineAgent(order, workspace, host, noticing, progress)


async def _until_broken(outlet: FrameWriter) -> None:
    """Return once nobody reads the frames any more."""
    while not outlet.is_broken:  # noqa: ASYNC110  # set by a thread when a write fails
        await asyncio.sleep(LISTENER_SWEEP_SECONDS)
