"""`andy demo`: shows the whole path of a message on a home of its own, and checks each step."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from orchestrator.app import Orchestrator
from orchestrator.base import installation, logging
from orchestrator.base.event_bus import EventBus, HostEvent
from orchestrator.cli.client import Client
from orchestrator.cli.exit_codes import FAILED
from orchestrator.cli.groups import register_chat
from orchestrator.cli.options import Runtime
from orchestrator.cli.terminal import read
from orchestrator.compose.self_inspect import is_behind_filter
from orchestrator.domain.errors import AndyError, BadRequest, leaves
from orchestrator.groups.registration import Registration
from orchestrator.home import settings as config
from orchestrator.home.directory import Home
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.conversation import messages

GROUP = "family"
REMINDER_SECONDS = 5
STEP_SECONDS = 90.0
"""Most seconds that one step of the demo may take."""
LATE_MS = 1_000
"""Milliseconds after its time from which the reminder counts as late."""


class DemoFailed(AndyError):
    """A step of the demo failed."""


def demo(*, runtime: Runtime = "auto", keep: bool = False) -> int:
    """Show the way of a message to its reply in a home of its own, without a key or a phone.

    Example: `andy demo --runtime process`

    Parameters
    ----------
    runtime
        Where the agent runs: `docker`, `process`, or `auto`: Docker if its image is already there.
    keep
        Do not delete the demo's home afterwards.
    """
    if is_behind_filter():
        raise BadRequest(
            "The demo is for an Andy without Compose. This one runs: on the host, type"
            """ 'docker compose exec andy andy chat main -m "hello"'."""
        )
    return asyncio.run(_run_demo(runtime, keeps_home=keep))


async def _run_demo(runtime: str, *, keeps_home: bool) -> int:
    """Run the demo; return 0 if every step succeeded, else print the failed one and return 1.

    The demo's home is deleted at the end, unless `keeps_home`.
    """
    root = Path(tempfile.mkdtemp(prefix="andy-demo-"))
    home = Home(root)
    problems: list[str] = []
    logging.configure("error")
    try:
        await register_chat(root, Registration(folder=GROUP, name="Family"))
        async with _running_orchestrator(home, runtime) as bus:
            await _run_steps(home, bus)
    except* (AndyError, TimeoutError) as failed:
        problems = [str(error) or "It took too long." for error in leaves(failed)]
    finally:
        await asyncio.to_thread(_remove_home, root, keeps_home=keeps_home)
    for problem in problems:
        print(f"\n✗ {problem}")
    if not problems:
        up, chat = installation.command("up"), installation.command("chat", "main")
        print(f"\n✓ All steps succeeded. Next: {up}, and in another terminal {chat}")
    return FAILED if problems else 0


@asynccontextmanager
async def _running_orchestrator(home: Home, runtime: str) -> AsyncIterator[EventBus]:
    """Run Andy on `home` without a key of a model, and yield his event bus; he ends with the block.

    `runtime` says where agents run: `docker`, `process` or `auto`. Nothing is yielded if the start fails:
    then its error is raised.
    """
    chosen = await asyncio.to_thread(_best_runtime) if runtime == "auto" else runtime
    # With an empty environment: neither a key nor a setting of the owner's own Andy counts here.
    settings = config.load(home.root, {}, andy_runtime=chosen, andy_agent="offline", andy_port=0)
    orchestrator = Orchestrator(
        home, settings, credentials=CredentialSource(home.root, {}), say=_print_indented
    )
    stop, ready = asyncio.Event(), asyncio.Event()

    def announce(address: str) -> None:
        """Print the address at which Andy is up, and set `ready`, so that the demo continues."""
        print(f"  Andy is up on {address}, home {home.root}")
        ready.set()

    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(
            orchestrator.run(stop=stop, on_ready=announce, leaves_containers=False), name="orchestrator"
        )
        waiting = asyncio.create_task(ready.wait(), name="until-ready")
        # Either of the two: a start that fails ends `serving` and never sets `ready`.
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        try:
            if ready.is_set():
                yield orchestrator.bus
        finally:
            stop.set()


def _best_runtime() -> str:
    """Return `docker` if an engine has the agents' image, else `process`, after printing a warning.

    A demo builds no image.
    """
    from orchestrator.containers import runtime_selection
    from orchestrator.domain.errors import ContainerError
    from orchestrator.home.settings import Settings

    try:
        if runtime_selection.has_image(Settings().andy_image):
            return "docker"
    except ContainerError:
        pass
    print("  ⚠️  No image for agents is here: the agent runs as a process of your user, NOT isolated.")
    return "process"


async def _run_steps(home: Home, bus: EventBus) -> None:
    """Send the messages of the demo one after another. Raises `DemoFailed`, `TimeoutError`."""
    with bus.listening() as events:
        async with Client.of(home) as client:
            _print_heading("A message that calls nobody is context, no more")
            await _say(client, "We need milk and bread for tomorrow.")
            _print_heading("A message that calls Andy")
            first_run = await _ask(client, events, "@Andy add milk to the shopping list")
            _print_heading("A follow-up, answered by the same container")
            second_run = await _ask(client, events, "@Andy show the shopping list")
            if first_run != second_run:
                raise DemoFailed("The follow-up was answered by another container.")
            _print_heading("A reminder, sent at its time without a container")
            await _ask(client, events, f"@Andy remind us in {REMINDER_SECONDS} seconds to take the bread out")
            await _wait_for_reminder(home, events)


async def _say(client: Client, text: str) -> dict[str, Any]:
    """Send a message to the demo's group as the person Mia, print it, and return its state.

    Raises:
        DemoFailed: it is neither answered, nor stored as not meant for Andy.
    """
    print(f"  Mia   │ {text}")
    state = await client.say(GROUP, text, sender="Mia", wait_seconds=STEP_SECONDS)
    if state["outcome"] == "ignored":
        print(f"        │ stored, not for Andy: {state['reason']}")
    elif state["outcome"] != "answered":
        reason = state.get("reason", "")
        raise DemoFailed(f"The message was not answered: {state['outcome']} {reason}".rstrip())
    return state


async def _ask(client: Client, events: asyncio.Queue[HostEvent], text: str) -> str | None:
    """Send a message that Andy answers, and print the answer.

    Return the id of the run (container) that answered; None if Andy answered without a container. Raises
    `DemoFailed`, `TimeoutError`.
    """
    state = await _say(client, text)
    # The answer is in `state` already; its event names the run.
    run = await _wait_for_answer(events)
    for line in state.get("reply", "").splitlines():
        print(f"  Andy  │ {line}")
    return run


async def _wait_for_answer(events: asyncio.Queue[HostEvent]) -> str | None:
    """Print the events of a turn until it is answered.

    Return the id of the run (container) that answered; None if the event names none. Raises `TimeoutError`.
    """
    async with asyncio.timeout(STEP_SECONDS):
        while True:
            event = await events.get()
            match event.kind:
                case "run.started":
                    print(f"        │ container {event.detail} started for '{event.group}'")
                case "turn.handed_over":
                    print("        │ handed to the container that runs already")
                case "turn.answered":
                    print(f"        │ answered by run {event.run}")
                    return event.run


async def _wait_for_reminder(home: Home, events: asyncio.Queue[HostEvent]) -> None:
    """Wait for the reminder, print it, and check that it came at its time.

    Raises `DemoFailed` if it is late or was not set, and `TimeoutError` if it does not come.
    """
    # The demo's home has only this reminder. On a slow machine it may have been sent already.
    reminder = read(home.root, lambda tx: board_notifications.by_number(tx, 1))
    if reminder is None:
        raise DemoFailed("The reminder was not set.")
    async with asyncio.timeout(STEP_SECONDS):
        while True:
            event = await events.get()
            # Answers belong to turns, reminders do not.
            if event.kind == "message.sent" and event.turn is None:
                break
    message = read(home.root, lambda tx: messages.by_id(tx, event.message or ""))
    assert message is not None
    late_ms = message.sent_ms - reminder.due_ms
    print(f"  Andy  │ {message.text}")
    print(f"        │ sent {late_ms} ms after its time")
    if late_ms > LATE_MS:
        raise DemoFailed("The reminder came more than a second late.")


def _print_heading(text: str) -> None:
    """Print the heading of a step."""
    print(f"\n  {text}")


def _print_indented(text: str) -> None:
    """Print a line that the host says, indented like the other lines of the demo."""
    print(f"  {text}", flush=True)


def _remove_home(root: Path, *, keeps_home: bool) -> None:
    """Delete the demo's home or, with `keeps_home`, print where it is."""
    import shutil

    if keeps_home:
        print(f"\n  The demo's home is {root}")
        return
    shutil.rmtree(root, ignore_errors=True)
