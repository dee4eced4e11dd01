"""The command line. Slow libraries are imported by the command that needs them."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Annotated, Literal

from cyclopts import App, Parameter

from orchestrator import __version__
from orchestrator.base.terminal_escaping import escaped_output
from orchestrator.cli import (
    accounts,
    backup,
    context,
    cron,
    dashboard,
    doctor,
    events,
    groups,
    loop,
    notices,
    reminders,
    service,
    setup,
    tasks,
    whatsapp,
)
from orchestrator.cli.options import (
    FAILED,
    GroupArgument,
    HomeOption,
    JsonOption,
    LimitOption,
    read,
    show,
)
from orchestrator.domain.errors import AndyError, BadRequest, NotRunning, UnknownTask, leaves

USAGE, NOT_RUNNING = 2, 3

Runtime = Literal["auto", "docker", "process"]
Agent = Literal["auto", "claude", "offline"]

app = App(
    name="andy",
    help="A personal assistant that lives in group chats, one container a group.",
    version=__version__,
    version_flags=["--version", "-V"],
    help_format="plaintext",  # to load and render Markdown is a quarter of the time of --help
)
app.command(groups.groups_app)
outbox_app = app.command(App(name="outbox", help="What is on its way to a chat."))
app.command(accounts.usage)
app.command(accounts.budget_app)
app.command(accounts.audit_app)
app.command(events.events)
app.command(backup.backup)
app.command(backup.restore)
app.command(tasks.tasks_app)
app.command(reminders.reminders_app)
app.command(dashboard.dashboard_app)
app.command(cron.cron_app)
app.command(loop.loop_app)
app.command(context.context_app)
app.command(notices.notices_app)
app.command(whatsapp.whatsapp_app)
app.command(setup.setup)
app.command(service.service_app)
app.command(doctor.doctor)
image_app = app.command(App(name="image", help="The agents' container image."))


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 usage, 3 not running."""
    with escaped_output():
        _run()


def _run() -> None:
    try:
        _check_text(sys.argv[1:])
        sys.exit(
            _code(app(sys.argv[1:], exit_on_error=False, print_error=True, result_action="return_value"))
        )
    except NotRunning as error:
        _fail(error, NOT_RUNNING)
    except AndyError as error:
        _fail(error, FAILED)
    except BaseExceptionGroup as group:
        known = [error for error in leaves(group) if isinstance(error, AndyError)]
        if not known:
            raise
        _fail(known[0], FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        from cyclopts import CycloptsError

        if isinstance(error, CycloptsError):
            print(
                "See 'andy --help', or --help after a command; options stand after it too.", file=sys.stderr
            )
            sys.exit(USAGE)
        raise


def _check_text(words: list[str]) -> None:
    """Bytes that are no UTF-8 come in as what can be written nowhere."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            shown = word.encode(errors="replace").decode()
            raise BadRequest(f"'{shown[:40]}' is no UTF-8: check the terminal's encoding.") from error


def _code(result: object) -> int:
    return result if isinstance(result, int) else 0


def _fail(error: AndyError, code: int) -> None:
    mend = " See 'andy tasks list'." if isinstance(error, UnknownTask) else ""
    print(f"andy: {error}{mend}", file=sys.stderr)
    sys.exit(code)


@app.command
def demo(*, runtime: Runtime = "auto", keep: bool = False) -> int:
    """Show a message going all the way, on a home of its own, with no key and no phone.

    Example: `andy demo --runtime process`

    Parameters
    ----------
    runtime
        Where the agent runs: `docker`, `process`, or `auto` for the best there is.
    keep
        Keep the demo's home for a look around.
    """
    from orchestrator.cli.demo import run_demo

    return asyncio.run(run_demo(runtime, keeps_home=keep))


@app.command
def up(
    *,
    home: HomeOption = None,
    runtime: Runtime | None = None,
    agent: Agent | None = None,
    port: int | None = None,
) -> None:
    """Run Andy until Ctrl-C or SIGTERM. Containers live on, and the next start goes on with them.

    Example: `andy up --runtime docker --port 8700`

    Parameters
    ----------
    runtime
        Where agents run. [ANDY_RUNTIME, else auto]
    agent
        Who answers: `claude` needs a credential in .env, `offline` needs nothing. [ANDY_AGENT, else auto]
    port
        The port of the HTTP door on 127.0.0.1. [ANDY_PORT, else 8700]
    """
    # What it needs takes a moment to load, and on a busy machine many.
    print("Andy starts …", file=sys.stderr, flush=True)
    from orchestrator.cli import terminal

    asyncio.run(terminal.serve(home, {"andy_runtime": runtime, "andy_agent": agent, "andy_port": port}))


@app.command
def chat(
    group: GroupArgument = "main",
    /,
    *,
    message: Annotated[
        str | None, Parameter(name=["-m", "--message"], help="Say this, print the reply and exit.")
    ] = None,
    sender: Annotated[str, Parameter(help="Who is writing.")] = "you",
    wait: Annotated[
        float, Parameter(help="Seconds to wait for the reply to -m; it is not lost when it comes later.")
    ] = 120.0,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> int:
    """Write to a group from this terminal and read its replies.

    Example: `andy chat main -m "remind me in 10 minutes to stretch"`
    """
    from orchestrator.cli import chat as talk

    if message is None:
        return asyncio.run(talk.converse(home, group, sender=sender))
    return asyncio.run(talk.say(home, group, message, sender=sender, wait_seconds=wait, as_json=as_json))


@app.command(name="say")
def say_as_andy(
    group: GroupArgument,
    text: Annotated[str, Parameter(help="What Andy is to say, word for word.")],
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Speak in a group as Andy; its agent reads it as what Andy said. To speak to Andy, use 'andy chat'.

    Example: `andy say family "Dinner is at seven today."`
    """
    from orchestrator.cli import chat as talk

    done = asyncio.run(talk.say_as_andy(home, group, text))
    show(done, lambda found: [f"It is on its way to '{found['group']}'."], as_json=as_json)


@app.command
def status(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Tell what runs, waits and is stuck.

    Example: `andy status`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import status as telling

    show(
        asyncio.run(terminal.status(home)),
        partial(telling.lines, zone=terminal.zone_of(home)),
        as_json=as_json,
    )


@app.command
def messages(
    group: GroupArgument,
    /,
    *,
    message_id: Annotated[
        str | None, Parameter(name="--id", help="Follow this one, by its number or its id.")
    ] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List a group's newest messages with what became of each, or all that befell one. Works with Andy down.

    Example: `andy messages family --id 17`
    """
    from orchestrator.cli import terminal, trace
    from orchestrator.reports import groups

    zone = terminal.zone_of(home)
    if message_id is not None:
        found = asyncio.run(terminal.follow_message(home, group, message_id))
        show(found, partial(trace.lines, zone=zone), as_json=as_json)
        return
    read(
        home,
        lambda tx: groups.message_rows(tx, group, limit=limit),
        partial(groups.message_lines, zone=zone),
        as_json=as_json,
    )


@app.command
def turns(
    group: GroupArgument | None = None,
    /,
    *,
    limit: LimitOption = 30,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List what agents were asked, newest first. Works with Andy down.

    Example: `andy turns family`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import queues

    lines = partial(queues.turn_lines, zone=terminal.zone_of(home))
    read(home, lambda tx: queues.turn_rows(tx, group, limit=limit), lines, as_json=as_json)


@app.command
def logs(
    group: Annotated[str | None, Parameter(help="A group's containers. [the host's own log]")] = None,
    /,
    *,
    follow: Annotated[
        bool, Parameter(name=["-f", "--follow"], negative="", help="Go on, across runs, until Ctrl-C.")
    ] = False,
    run: Annotated[str | None, Parameter(help="A run, by the beginning of its id. [the newest]")] = None,
    lines: Annotated[int, Parameter(name=["-n", "--lines"], help="Show at most so many lines.")] = 200,
    home: HomeOption = None,
) -> None:
    """Show what a group's container did and said: its newest run. Works with Andy down.

    Example: `andy logs family -f`
    """
    from orchestrator.cli import terminal

    view = terminal.logs(home, group, run=run, lines=max(0, lines))
    for line in view.lines:
        print(line)
    if follow:
        for line in view.later:
            print(line, flush=True)


@outbox_app.command(name="list")
def list_outbox(*, limit: LimitOption = 100, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List what has not been sent: waiting, held or dead. Works with Andy down.

    Example: `andy outbox list`
    """
    from orchestrator.reports import queues

    read(home, lambda tx: queues.outbox_rows(tx, limit=limit), queues.outbox_lines, as_json=as_json)


@outbox_app.command
def retry(
    number: Annotated[int, Parameter(help="Its id in 'andy outbox list'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Queue a dead message again.

    Example: `andy outbox retry 7`
    """
    from orchestrator.cli import terminal

    asyncio.run(terminal.retry(home, number))
    print(f"Message {number} is queued again.")


@image_app.command
def build(
    *,
    base: Annotated[
        Literal["auto", "pull", "debian"],
        Parameter(help="Where the base comes from: a registry, or made here of Debian packages."),
    ] = "auto",
    tag: Annotated[str | None, Parameter(help="The image's name. [ANDY_IMAGE]")] = None,
    home: HomeOption = None,
) -> None:
    """Build the agents' image: minutes the first time, seconds after a change of the runner.

    Example: `andy image build`
    """
    from orchestrator.cli import terminal

    terminal.build_image(home, base=base, tag=tag)
