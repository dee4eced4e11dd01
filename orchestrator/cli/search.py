"""`andy search`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.options import GroupOption, HomeOption, JsonOption, LimitOption, read


def search(
    text: Annotated[
        str, Parameter(help='The words that a message must have; "in quotes" they are one phrase.')
    ],
    /,
    group: GroupOption = None,
    *,
    since: Annotated[
        str | None, Parameter(help="A time, or how long ago: 2026-11-22T09:00, 30m, 2h, 7d. [the beginning]")
    ] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Find messages of all groups by their words or parts of them, the newest first. Works with Andy down.

    Example: `andy search "dentist" --group family --since 30d`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import search as search_reports

    at = terminal.moment(home)
    begin_ms = terminal.since_ms(since, at)
    read(
        home,
        lambda tx: search_reports.rows(tx, text, folder=group, since_ms=begin_ms, limit=max(0, limit)),
        partial(search_reports.lines, zone=at.zone),
        as_json=as_json,
    )
