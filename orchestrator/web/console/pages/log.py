"""Log: what is logged, live and filtered; and a search over the messages of all groups."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from orchestrator.base.logging import HostLogLine, read_line
from orchestrator.base.redaction import redact
from orchestrator.containers.logs import reading
from orchestrator.domain.errors import BadRequest
from orchestrator.reports import queues, search
from orchestrator.store import groups
from orchestrator.web.console.page import Page, View

LINES, READ_LINES = 200, 5_000
"""Lines that are shown, and those of the end of a log that are looked through for them."""
FOUND = 30
RUNS = 30
LEVELS = {"": (), "warning": ("warning", "error", "critical"), "error": ("error", "critical")}
"""The least level that is to be shown of the host's own log → the levels that are shown."""


async def show(view: View) -> Response:
    folder, run, level = view.query("group") or None, view.query("run") or None, view.query("level")
    async with view.web.host.reader.reading() as tx:
        every = await groups.every(tx)
        if folder:
            await groups.known(tx, folder)  # it becomes part of a path
        runs = await queues.run_rows(tx, folder, limit=RUNS) if folder else []
    words, problem = view.query("words").strip().casefold(), ""
    lines: list[HostLogLine] = []
    try:
        lines = await asyncio.to_thread(_lines, view, folder, run)
    except BadRequest as error:
        problem = str(error)
    levels = LEVELS.get(level, ()) if folder is None else ()
    shown = [
        replace(line, text=redact(line.text))
        for line in lines
        if (not words or words in line.text.casefold()) and (not levels or line.level in levels)
    ]
    return view.render(
        "log.html",
        lines=shown[-LINES:],
        problem=problem,
        group=folder or "",
        run=run or "",
        level=level if level in LEVELS else "",
        words=view.query("words"),
        choices=view.choices(every, first=".host"),
        levels=[(one, view.t(f".level_{one or 'all'}")) for one in LEVELS],
        runs=[("", view.t(".newest")), *((one["id"], _name(view, one)) for one in runs)],
    )


async def find(view: View) -> Response:
    """Show the messages that have the words of `q`, the newest first, a page at a time."""
    text, folder = view.query("q").strip(), view.query("group") or None
    found: list[dict[str, Any]] = []
    problem = ""
    async with view.web.host.reader.reading() as tx:
        every = await groups.every(tx)
        if text:
            try:
                before = view.number("before") or None
                found = await search.rows(tx, text, folder=folder, before=before, limit=FOUND + 1)
            except BadRequest as error:
                problem = str(error)
    return view.render(
        "log_search.html",
        q=text,
        found=found[:FOUND],
        older=found[FOUND - 1]["seq"] if len(found) > FOUND else 0,
        problem=problem,
        group=folder or "",
        choices=view.choices(every),
    )


def _lines(view: View, folder: str | None, run: str | None) -> list[HostLogLine]:
    """Return the end of a run's log, or of the host's own without a group. Raises `NoLog`. Blocks."""
    home = view.web.host.home
    path = home.host_log if folder is None else reading.run_log(home.logs, folder, run).path
    zone = view.console.zone
    return [read_line(line, zone) for line in reading.last_lines(path, READ_LINES)[0]]


def _name(view: View, run: dict[str, Any]) -> str:
    return f"{view.ago(run['started_ms'])} · {run['id'][:8]} · {run['exit'] or view.t('.runs_now')}"


PAGE = Page(
    name="log",
    order=100,
    shows={"/log": show, "/log/search": find},
    live={"lines": ("turn.*", "run.*", "message.*", "host.*", "command.*", "channel.*")},
)
