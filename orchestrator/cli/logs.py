"""`andy logs`: the last lines of a log, and what comes after them. Works with Andy down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

from cyclopts import Parameter
from cyclopts.validators import Number

from orchestrator.base.clock import local_second
from orchestrator.base.logging import read_line
from orchestrator.cli.options import HomeOption
from orchestrator.cli.terminal import home_of, zone_of
from orchestrator.containers.logs.reading import follow_file, follow_group, last_lines, pause, run_log

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
"""The time with which a line of a run's log begins."""


@dataclass(frozen=True, slots=True)
class LogView:
    """The last lines of a log, and an endless iterator over the lines that are written later."""

    lines: list[str]
    later: Iterator[str]


def logs(
    group: Annotated[
        str | None, Parameter(help="Show the log of this group's containers. [the host's log]")
    ] = None,
    /,
    *,
    follow: Annotated[
        bool,
        Parameter(name=["-f", "--follow"], negative="", help="Print new lines, across runs, until Ctrl-C."),
    ] = False,
    run: Annotated[str | None, Parameter(help="A run, by the beginning of its id. [the newest]")] = None,
    lines: Annotated[
        int, Parameter(name=["-n", "--lines"], help="Show at most this many lines.", validator=Number(gte=0))
    ] = 200,
    raw: Annotated[
        bool,
        Parameter(negative="", help="Print lines as they are in the file: times in UTC, JSON of the host."),
    ] = False,
    home: HomeOption = None,
) -> None:
    """Show the log of a group's newest container, or of the host. Works with Andy down.

    Example: `andy logs family -f`
    """
    view = _view(home, group, run=run, lines=lines)
    format_line = str if raw else partial(_with_local_time, zone=zone_of(home))
    for line in view.lines:
        print(format_line(line))
    if follow:
        for line in view.later:
            print(format_line(line), flush=True)


def _with_local_time(line: str, *, zone: ZoneInfo) -> str:
    """Return a line of a log as text for people, with its time in `zone`.

    A line of JSON, as the host writes it, becomes one of text; a line without a time is unchanged.
    """
    stamp, blank, text = line.partition(" ")
    if _STAMP.fullmatch(stamp):
        at_ms = int(datetime.fromisoformat(stamp).timestamp() * 1000)
        return f"{local_second(at_ms, zone)}{blank}{text}"
    return read_line(line, zone).text


def _view(home_option: Path | None, group: str | None, *, run: str | None, lines: int) -> LogView:
    """Return the last lines of a log, and an endless iterator over the lines that are written later. Blocks.

    The log is that of the group's newest container, or of the host if `group` is None. `run` is the beginning
    of the id of an older container. `lines` is the largest number of last lines.

    Raises:
        NoLog: there is no log, or no such run.
    """
    logs_folder = home_of(home_option).logs
    if group is None:
        path = home_of(home_option).host_log
        last, end = last_lines(path, lines)
        return LogView(last, follow_file(path, start=end, wait=pause))
    shown_run = run_log(logs_folder, group, run)
    last, end = last_lines(shown_run.path, lines)
    if run is not None:
        return LogView(last, follow_file(shown_run.path, start=end, wait=pause))
    later = follow_group(logs_folder, group, shown=shown_run, start=end, wait=pause)
    return LogView(last, later)
