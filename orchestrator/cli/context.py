"""`andy context`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

from cyclopts import App, Parameter

from orchestrator.cli.options import FAILED, GroupArgument, HomeOption, JsonOption, show

context_app = App(name="context")

SnapshotArgument = Annotated[str, Parameter(help="Its name in 'andy context snapshots GROUP'.")]
YesOption = Annotated[bool, Parameter(name="--yes", negative="", help="Do not ask whether that is meant.")]


@context_app.command(name="show")
def show_context(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show what is kept of a group's conversation. Works with Andy down, as the others do.

    Example: `andy context show family`
    """
    from orchestrator.cli import context_service, terminal
    from orchestrator.reports import context

    kept = context_service.look(home, group)
    found = context.show(group, kept, context_service.mended(home, group))
    show(found, partial(context.show_lines, zone=terminal.zone_of(home)), as_json=as_json)


@context_app.command
def plan(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show a group's plans with their tasks; an arrow is at the one that is worked on.

    Example: `andy context plan family`
    """
    from orchestrator.cli import context_service
    from orchestrator.reports import context

    found = context.plans(group, context_service.look(home, group))
    show(found, context.plan_lines, as_json=as_json)


@context_app.command
def snapshots(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the snapshots of a group's context, newest first.

    Example: `andy context snapshots family`
    """
    from orchestrator.cli import context_service, terminal
    from orchestrator.reports import context

    rows = context.snapshot_rows(context_service.snapshots(home, group))
    show(rows, partial(context.snapshot_lines, zone=terminal.zone_of(home)), as_json=as_json)


@context_app.command
def restore(
    group: GroupArgument, snapshot: SnapshotArgument, /, *, yes: YesOption = False, home: HomeOption = None
) -> int:
    """Put a snapshot in place of what is kept: context and plans. A new session begins with it.

    What was there before is a snapshot then.

    Example: `andy context restore family context-20261123T121000Z-r14.json`
    """
    from orchestrator.cli import context_service

    context_service.check_snapshot(home, group, snapshot)
    if not _is_meant(f"Put {snapshot} in place of what is kept of '{group}'?", yes=yes):
        return FAILED
    taken = context_service.restore(home, group, snapshot)
    print(f"Restored.{f' What was there before is {taken.name}.' if taken else ''}")
    return 0


@context_app.command
def pin(
    group: GroupArgument,
    snapshot: SnapshotArgument,
    /,
    *,
    off: Annotated[bool, Parameter(negative="", help="Let it go with the others again.")] = False,
    home: HomeOption = None,
) -> None:
    """Keep a snapshot for good.

    Example: `andy context pin family context-20261123T121000Z-r14.json`
    """
    from orchestrator.cli import context_service

    context_service.pin(home, group, snapshot, off=off)
    print(f"{snapshot} is {'kept no longer than others' if off else 'kept for good'}.")


@context_app.command
def reset(
    group: GroupArgument,
    /,
    *,
    with_plans: Annotated[bool, Parameter(negative="", help="Forget its plans too.")] = False,
    yes: YesOption = False,
    home: HomeOption = None,
) -> int:
    """Forget what is kept of a group's conversation; a new session begins with nothing.

    What was there before is a snapshot then. Its messages stay where they are, and so do its files.

    Example: `andy context reset family --with-plans`
    """
    from orchestrator.cli import context_service

    if not _is_meant(f"Forget what is kept of '{group}'?", yes=yes):
        return FAILED
    taken = context_service.reset(home, group, with_plans=with_plans)
    print(f"Forgotten.{f' What was there before is {taken.name}.' if taken else ''}")
    return 0


@context_app.command
def why(group: GroupArgument, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Tell how a group's conversation went on when its last container began, and why so.

    Example: `andy context why family`
    """
    from orchestrator.cli import context_service, terminal
    from orchestrator.reports import context

    found = context.why(group, context_service.last_start(home, group))
    show(found, partial(context.why_lines, zone=terminal.zone_of(home)), as_json=as_json)


def _is_meant(question: str, *, yes: bool) -> bool:
    """Ask a person; where none can be asked, it is not meant."""
    if yes:
        return True
    if not sys.stdin.isatty():
        print(f"{question} Say --yes if that is meant.", file=sys.stderr)
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
