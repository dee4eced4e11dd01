"""Log: what is logged, in rows that lead to their messages and runs; and a search over all messages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from starlette.responses import Response

from orchestrator.base.logging import HostLogLine, read_line
from orchestrator.base.redaction import redact
from orchestrator.containers.logs import files, reading
from orchestrator.domain.errors import BadRequest
from orchestrator.reports import queues, search
from orchestrator.store.conversation import messages
from orchestrator.store.groups import groups
from orchestrator.web.console.page import Page, View

LINES, READ_LINES = 200, 5_000
"""Lines that are shown, and those of the end of a log that are looked through for them."""
FOUND = 30
RUNS = 30
OF_HOST = "host"
"""The choice of Andy's own log in the list of a group's runs."""
LEVELS = {"": (), "warning": ("warning", "error", "critical"), "error": ("error", "critical")}
"""The levels that are shown for each choice of the least one."""
_FAILED = ("failed", "broke", "crashed")
_NOT_WELL = ("put_back", "stopped", "lost", "refused", "denied")
"""Endings of the kinds of a run's events that count as errors and as warnings: events have no level."""
_OF_CONTAINER = re.compile(r"(?P<at>\S+Z) stderr@\d+\| (?P<text>.*)")
_EVENT = re.compile(r"[a-z_]+(\.[a-z_]+)+")
_EPOCH_MS = re.compile(r"1[0-9]{12}")
"""A time in epoch milliseconds between the years 2001 and 2033."""
_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)
"""A number of a row that fits the store's integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """A line as it is shown. One that is not in a known form has its text alone."""

    line: HostLogLine
    folder: str
    """The group that it is about, as it says; empty where it says none."""
    link: str
    """The page of the message or run that it names; empty where it names none."""


async def show(view: View) -> Response:
    """Show the newest lines of the host's log, or of the log of a run, that fit the query."""
    folder, level = view.query("group") or None, view.query("level")
    # A run's id; None for the group's newest run, and `OF_HOST` for the lines of Andy's own log about the
    # group. Without a group, Andy's whole log is shown, whatever this is.
    run = view.query("run") or None
    entered_text, problem = view.query("words"), ""
    lines: list[HostLogLine] = []
    async with view.host.reader.reading() as tx:
        all_groups = await groups.every(tx)
        if folder:
            # The folder becomes part of a path below, so one that is not known is refused here.
            await groups.known(tx, folder)
        runs = await queues.run_rows(tx, folder, limit=RUNS) if folder else []
    level = level if level in LEVELS else ""
    # A run's log is about its group alone, so only Andy's own log has to be filtered by group.
    about_folder = folder if run == OF_HOST else None
    fits = _line_filter(entered_text.strip().casefold(), LEVELS[level], about_folder)
    try:
        lines = await asyncio.to_thread(_lines, view, folder, run, fits)
    except BadRequest as error:
        problem = view.why(error)
    return view.render(
        "log.html",
        rows=await _linked_rows(view, lines, folder),
        day_of=lambda moment: view.day(moment.date().isoformat()),
        problem=problem,
        group=folder or "",
        run=run or "",
        level=level,
        entered_text=entered_text,
        event_text=event_text,
        fact=partial(fact_text, view),
        names={str(group.folder): group.name for group in all_groups},
        choices=view.choices(all_groups, first=".host"),
        levels=[(choice, view.t(f".level_{choice or 'all'}")) for choice in LEVELS],
        runs=[
            ("", view.t(".newest")),
            (OF_HOST, view.t(".host_about")),
            *((listed_run["id"], _run_name(view, listed_run)) for listed_run in runs),
        ],
    )


def _line_filter(
    search_text: str, levels: tuple[str, ...], folder: str | None
) -> Callable[[HostLogLine], bool]:
    """Return a function that decides whether a line of a log is shown.

    The line has to contain `search_text`, which is in lower case, if it is not empty; its level has to be one
    of `levels` if there are any, and its group `folder` if that is not None.
    """

    def fits(line: HostLogLine) -> bool:
        """Return whether a line fits the search: its text, its level and its group."""
        return (
            (not search_text or search_text in line.text.casefold())
            and (not levels or line.level in levels)
            and (folder is None or line.fields.get("group") == folder)
        )

    return fits


def _lines(
    view: View, folder: str | None, run: str | None, fits: Callable[[HostLogLine], bool]
) -> list[HostLogLine]:
    """Return the newest `LINES` lines for which `fits` is true, oldest first. Blocks.

    They are from the host's own log without a `folder`, or if `run` is `OF_HOST`; else from the log of the
    run, of the group's newest run if `run` is None. Only the last `READ_LINES` lines are looked at.

    Raises:
        NoLog: the run has no log.
    """
    home, zone = view.host.home, view.console.zone
    if folder is None or run == OF_HOST:
        path, read_as = home.host_log, read_line
    else:
        path, read_as = reading.run_log(home.logs, folder, run).path, read_run_line
    lines: list[HostLogLine] = []
    # From the end: most often the newest lines are enough, and the others need not be parsed.
    for text in reversed(reading.last_lines(path, READ_LINES)[0]):
        line = read_as(text, zone)
        if fits(line):
            lines.append(line)
        if len(lines) == LINES:
            break
    return lines[::-1]


def read_run_line(line: str, zone: ZoneInfo) -> HostLogLine:
    """Return a line of a run's log with its parts: an event, or the output of the container. Pure.

    Its time is in `zone`. Output is such as `2026-01-31T09:30:00Z stderr@12| text`, where 12 is the position
    in bytes at which the text ends in the stream: its level is that of the text, if that is a log line
    itself, and the text is returned as `event`. With an impossible time, only the whole line is returned, as
    text. Any other line is read like one of the host's log.
    """
    event = files.read_event(line)
    if event is not None:
        kind = event.kind
        level = "info"
        if kind.endswith(_FAILED):
            level = "error"
        elif kind.endswith(_NOT_WELL):
            level = "warning"
        moment = datetime.fromtimestamp(event.at_ms / 1000, zone)
        return HostLogLine(level=level, text=line, at=moment, event=kind, fields=event.facts)
    output = _OF_CONTAINER.fullmatch(line)
    if output is None:
        return read_line(line, zone)
    try:
        moment = datetime.fromisoformat(output["at"]).astimezone(zone)
    except (ValueError, OverflowError):
        return HostLogLine(level="", text=line)
    return HostLogLine(
        level=read_line(output["text"], zone).level, text=line, at=moment, event=output["text"]
    )


async def _linked_rows(view: View, lines: list[HostLogLine], folder: str | None) -> list[LogRow]:
    """Return lines of a log with their secrets masked, each with its group and a link to its message or run.

    `folder` is the group of lines that name none.
    """
    turns = {int(turn) for turn in (_digits(line, "turn") for line in lines) if turn}
    first_messages = await view.host.reader.read(lambda tx: messages.first_of_turns(tx, turns))
    rows = []
    for line in lines:
        group = line.fields.get("group", folder or "")
        first = first_messages.get(int(_digits(line, "turn") or 0))
        rows.append(LogRow(line=redacted(line), folder=group, link=_link(view, line, group, first)))
    return rows


def redacted(line: HostLogLine) -> HostLogLine:
    """Return a log line with the texts that look like secrets masked. Pure."""
    return HostLogLine(
        level=line.level,
        text=redact(line.text),
        at=line.at,
        event=redact(line.event),
        fields={name: redact(value) for name, value in line.fields.items()},
        exception=redact(line.exception),
    )


def event_text(event: str) -> str:
    """Return the name of an event in words: `host.started` becomes `Host: started`. Pure.

    Other texts are returned unchanged.
    """
    if _EVENT.fullmatch(event) is None:
        return event
    subject, _, action = event.partition(".")
    return f"{subject.replace('_', ' ').capitalize()}: {action.replace('_', ' ').replace('.', ' ')}"


def fact_text(view: View, name: str, value: str) -> tuple[str, str]:
    """Return the name and the value of a field of an event, as people read them.

    A time in milliseconds is shown as local time, a list without its brackets.
    """
    if name.endswith("_ms") and _EPOCH_MS.fullmatch(value):
        moment = datetime.fromtimestamp(int(value) / 1000, view.console.zone)
        shown = f"{view.day(moment.date().isoformat())} {moment:%H:%M}"
        return name.removesuffix("_ms").replace("_", " "), shown
    if value[:1] in "[{" and value[-1:] in "]}":
        value = value[1:-1].replace("'", "").replace('"', "")
    return name.replace("_", " "), value


def _digits(line: HostLogLine, name: str) -> str:
    """Return the number in the field `name` of a log line, as text; empty if the field is no number."""
    text = line.fields.get(name, "")
    return text if _NUMBER.fullmatch(text) else ""


def _link(view: View, line: HostLogLine, folder: str, first: messages.FirstOfTurn | None) -> str:
    """Return the page to which a log line leads: that of the message `first`, else that of the line's run.

    `first` is the first message of the turn that the line names. Empty if there is nothing to show, or it is
    the run that is shown already.
    """
    if first is not None:
        return view.url(f"/chats/{quote(first.folder)}/messages/{first.seq}")
    run = line.fields.get("run", "")
    is_other = run != view.query("run")
    return view.url(f"/log?{urlencode({'group': folder, 'run': run})}") if folder and run and is_other else ""


async def find(view: View) -> Response:
    """Show the messages that contain the words in the query's `q`, the newest first, a page at a time."""
    text, folder = view.query("q").strip(), view.query("group") or None
    rows: list[search.FoundView] = []
    problem = ""
    async with view.host.reader.reading() as tx:
        all_groups = await groups.every(tx)
        if text:
            try:
                before_seq = view.number("before") or None
                rows = await search.rows(tx, text, folder=folder, before_seq=before_seq, limit=FOUND + 1)
            except BadRequest as error:
                problem = view.why(error)
    return view.render(
        "log_search.html",
        q=text,
        found=rows[:FOUND],
        older=rows[FOUND - 1]["seq"] if len(rows) > FOUND else 0,
        problem=problem,
        group=folder or "",
        choices=view.choices(all_groups),
    )


def _run_name(view: View, run: queues.RunView) -> str:
    """Return the text of a run in the list of runs: when it began, the start of its id, and how it ended."""
    return f"{view.ago(run['started_ms'])} · {run['id'][:8]} · {run['exit'] or view.t('.runs_now')}"


PAGE = Page(
    name="log",
    order=100,
    shows={"/log": show, "/log/search": find},
    live={"lines": ("turn.*", "run.*", "message.*", "host.*", "command.*", "channel.*")},
)
