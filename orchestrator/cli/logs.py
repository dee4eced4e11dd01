"""`andy logs`: the last lines of a log, and what comes after them. Works with Andy down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from orchestrator.cli.options import HomeOption
from orchestrator.cli.terminal import home_of
from orchestrator.containers.logs.reading import follow_file, follow_group, last_lines, pause, run_log


@dataclass(frozen=True, slots=True)
class LogView:
    """The last lines of a log, and an endless iterator over those that are written from then on."""

    lines: list[str]
    later: Iterator[str]


def logs(
    group: Annotated[str | None, Parameter(help="A group's containers. [the host's own log]")] = None,
    /,
    *,
    follow: Annotated[
        bool, Parameter(name=["-f", "--follow"], negative="", help="Go on, across runs, until Ctrl-C.")
    ] = False,
    run: Annotated[str | None, Parameter(help="A run, by the beginning of its id. [the newest]")] = None,
    lines: Annotated[
        int, Parameter(name=["-n", "--lines"], help="Show at most so many lines.", validator=Number(gte=0))
    ] = 200,
    home: HomeOption = None,
) -> None:
    """Show what a group's container did and said: its newest run. Works with Andy down.

    Example: `andy logs family -f`
    """
    view = _view(home, group, run=run, lines=lines)
    for line in view.lines:
        print(line)
    if follow:
        for line in view.later:
            print(line, flush=True)


def _view(given: Path | None, group: str | None, *, run: str | None, lines: int) -> LogView:
    """Return the last lines of a log and what follows them; without a group, of the host's own log. Blocks.

    Raises:
        NoLog: there is none, or no such run.
    """
    root = home_of(given).logs
    if group is None:
        path = home_of(given).host_log
        told, end = last_lines(path, lines)
        return LogView(told, follow_file(path, start=end, wait=pause))
    shown = run_log(root, group, run)
    told, end = last_lines(shown.path, lines)
    if run is not None:
        return LogView(told, follow_file(shown.path, start=end, wait=pause))
    later = follow_group(root, group, shown=shown, start=end, wait=pause)
    return LogView(told, later)
