"""`andy cron`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from orchestrator.cli.options import GroupOption, HomeOption, JsonOption, read

cron_app = App(name="cron")


@cron_app.command(name="list")
def list_cron(
    group: GroupOption = None,
    *,
    with_over: Annotated[
        bool,
        Parameter(name="--all", negative="", help="Also what is over: paused tasks, sent notifications."),
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List scheduled tasks, notifications and reminders in one timetable, the next first.

    Example: `andy cron list family`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import upcoming

    zone = terminal.zone_of(home)
    read(
        home,
        lambda tx: upcoming.rows(tx, group, with_over=with_over, zone=zone),
        upcoming.lines,
        as_json=as_json,
    )
