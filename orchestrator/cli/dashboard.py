"""`andy dashboard`: the tasks, questions and notifications of groups."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zoneinfo import ZoneInfo

from cyclopts import App, Parameter

from orchestrator.base.tables import counted, short
from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import (
    GroupOption,
    GroupOrMainOption,
    HomeOption,
    JsonOption,
    LimitOption,
    show,
)
from orchestrator.domain.errors import NoDashboard

if TYPE_CHECKING:
    from orchestrator.cli.dashboard_service import GroupZone
    from orchestrator.store.database import Tx

dashboard_app = App(name="dashboard")

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d")
"""The form of a time in the data: ISO, with the offset of the group's zone."""
Status = Literal["pending", "sending", "delivered", "cancelled", "failed", "expired"]


@dashboard_app.command(name="show")
def show_board(
    group: GroupOrMainOption = None, *, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Show a group's dashboard as its agent reads it. Works with Andy down, as all but 'worker --llm' do.

    Example: `andy dashboard show family`
    """
    from orchestrator.base.clock import SystemClock
    from orchestrator.cli import dashboard_service
    from orchestrator.dashboard.views import board, summary

    if as_json:
        shown = dashboard_service.query_group(
            home, group, lambda tx, group_zone: board.show(tx, group_zone.group.folder, group_zone.zone)
        )
        print(json.dumps(shown.data, ensure_ascii=False, indent=2))
        return

    async def text(tx: Tx, group_zone: GroupZone) -> str:
        """Return the dashboard of the known group as plain text, or a sentence that it has none."""
        content = await board.active(tx, group_zone.group.folder)
        now_ms = SystemClock().now_ms()
        if content is None:
            return str(NoDashboard(group_zone.group.folder))
        return summary.render(content, now_ms=now_ms, zone=group_zone.zone)

    print(dashboard_service.query_group(home, group, text))


@dashboard_app.command
def tasks(
    group: GroupOption = None,
    *,
    with_all: Annotated[
        bool, Parameter(name="--all", negative="", help="List parked and ended tasks, too.")
    ] = False,
    someday: Annotated[bool, Parameter(negative="", help="List only parked tasks.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List tasks, the next deadline first.

    Example: `andy dashboard tasks --all`
    """
    from orchestrator.cli import dashboard_service

    # With --all, --someday changes nothing.
    wanted_status = None if with_all else "someday" if someday else "active"
    rows = [row for row in dashboard_service.tasks(home, group) if wanted_status in (None, row["status"])]
    names = ("id", "group", "status", "progress", "deadline", "priority", "title")
    show(rows, partial(_table, home, names, "There are no tasks."), as_json=as_json)


@dashboard_app.command
def questions(group: GroupOption = None, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List open questions.

    Example: `andy dashboard questions family`
    """
    from orchestrator.cli import dashboard_service

    names = ("id", "group", "priority", "type", "related_task_id", "question")
    show(
        dashboard_service.questions(home, group),
        partial(_table, home, names, "There are no open questions."),
        as_json=as_json,
    )


@dashboard_app.command
def notifications(
    group: GroupOption = None,
    *,
    status: Annotated[Status | None, Parameter(help="Only notifications with this status.")] = None,
    task: Annotated[str | None, Parameter(help="Only notifications of this task, by its id.")] = None,
    limit: LimitOption = 200,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List past and pending notifications, by due time.

    Example: `andy dashboard notifications --status pending`
    """
    from orchestrator.cli import dashboard_service

    names = ("id", "group", "scheduled_at", "status", "type", "priority", "related_task_id", "message")
    show(
        dashboard_service.notifications(home, group, status=status, task=task, limit=limit),
        partial(_table, home, names, "There are no notifications."),
        as_json=as_json,
    )


@dashboard_app.command
def notification(
    notification: Annotated[str, Parameter(help="The notification, by its id or the beginning of it.")],
    /,
    group: GroupOption = None,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show one notification and its history: created, moved, reworded, sent, when and by whom.

    Example: `andy dashboard notification n_1a2b3c4d`
    """
    from orchestrator.cli import dashboard_service

    shown = dashboard_service.notification(home, group, notification)
    # Only for people: JSON has the same as `history`.
    lines = shown.pop("lines")
    heading = f"{shown['id']}: {shown['type']}, {shown['status']}: {_cell(shown['message'])}"
    show(shown, lambda _: [heading, *lines], as_json=as_json)


@dashboard_app.command
def history(
    group: GroupOption = None,
    *,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the tasks in the history, the newest first.

    Example: `andy dashboard history --limit 10`
    """
    from orchestrator.cli import dashboard_service

    names = ("id", "group", "status", "completed_at", "archived_at", "title")
    show(
        dashboard_service.history(home, group, limit=limit),
        partial(_table, home, names, "The history is empty."),
        as_json=as_json,
    )


@dashboard_app.command
def answer(
    question: Annotated[str, Parameter(help="The question, by its id or the beginning of it.")],
    text: Annotated[str, Parameter(help="The answer; at most 10,000 characters.")],
    /,
    group: GroupOption = None,
    *,
    home: HomeOption = None,
) -> None:
    """Answer an open question.

    Example: `andy dashboard answer q_1a2b3c4d "The big hall"`
    """
    from orchestrator.cli import dashboard_service

    print(dashboard_service.answer(home, group, question, text))


@dashboard_app.command
def worker(
    group: GroupOrMainOption = None,
    *,
    llm: Annotated[bool, Parameter(negative="", help="Run the model; needs a running Andy.")] = False,
    rules: Annotated[bool, Parameter(negative="", help="Run the rules. This is the default.")] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Only show what the rules would do.")] = False,
    limit: LimitOption | None = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Run a dashboard's worker now; with --limit, list its latest cycles instead.

    Example: `andy dashboard worker --dry-run`
    """
    from orchestrator.cli import dashboard_service, terminal

    if limit:
        report = dashboard_service.query_group(home, group, partial(dashboard_service.cycles, limit=limit))
        show(report, partial(_cycle_lines, zone=terminal.zone_of(home)), as_json=as_json)
    elif llm and not rules:  # with both options, the rules are run
        if dry_run:
            raise UsageError("--dry-run only shows what the rules would do: leave out --llm.")
        show(
            dashboard_service.ask_model(home, group),
            lambda report: [f"The worker's turn {report['turn']} is queued."],
            as_json=as_json,
        )
    else:
        show(dashboard_service.apply_rules(home, group, is_dry=dry_run), _report_lines, as_json=as_json)


@dashboard_app.command(name="export")
def export_files(
    directory: Annotated[Path, Parameter(help="The directory to write the files to.")],
    /,
    group: GroupOrMainOption = None,
    *,
    home: HomeOption = None,
) -> None:
    """Write a dashboard as JSON files into a directory.

    Example: `andy dashboard export ~/board family`
    """
    from orchestrator.cli import dashboard_service

    print("\n".join(dashboard_service.write_files(home, group, directory)))


@dashboard_app.command(name="import")
def import_files(
    directory: Annotated[Path, Parameter(help="The directory to read the files from.")],
    /,
    group: GroupOrMainOption = None,
    *,
    replace: Annotated[
        bool, Parameter(negative="", help="Replace the whole dashboard by the files.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Add rows of JSON files to a dashboard if it lacks their ids; one invalid row refuses all.

    Example: `andy dashboard import ~/board family`
    """
    from orchestrator.cli import dashboard_service

    counts = dashboard_service.import_files(home, group, directory, replaces=replace)
    print(
        ", ".join(counted(count, _singular(name)) for name, count in counts.items() if count)
        or ("The dashboard is empty now." if replace else "Nothing new was in them.")
    )


def _singular(name: str) -> str:
    """Return the name of one row of a kind of rows, such as `task` of `tasks`."""
    return "person" if name == "people" else name.removesuffix("s")


def _table(
    home: Path | None, names: tuple[str, ...], empty_text: str, rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return rows as a table whose columns are the fields `names`; only `empty_text` if there are no rows.

    Times are in the zone of the row's group, which is named if it is not the one of `home`.
    """
    from orchestrator.base.clock import zone_note
    from orchestrator.base.tables import table
    from orchestrator.cli import terminal

    if not rows:
        return [empty_text]
    own_zone = terminal.zone_of(home)
    cells = [tuple(_cell(row[name], zone_note(row["timezone"], own_zone)) for name in names) for row in rows]
    return table(names, cells)


def _cell(value: object, note: str = "") -> str:
    """Return a value as text on one line of at most 80 characters, for a cell of a table.

    None is empty. A time is shown without its offset and seconds, and with `note` after it: so
    `2026-11-22T09:00:00+01:00` becomes `2026-11-22 09:00`.
    """
    text = "" if value is None else short(str(value), 80)
    return f"{text[:10]} {text[11:16]}{note}" if _TIME.fullmatch(text) else text


def _report_lines(report: dict[str, Any]) -> list[str]:
    """Return the report of the dashboard's rules as lines: what was done, skipped, or failed.

    A dry run reports under `would` what would be done.
    """
    # In a dry run `steps` is empty, since nothing was done.
    steps = report.get("would") or report["steps"]
    prefix = "would do" if "would" in report else "done"
    lines = [f"{prefix}: {_step_text(step)}" for step in steps]
    lines += [f"skipped: {step['what']} of {step['row']}: {step['why']}" for step in report["skipped"]]
    lines += [f"failed: {failure['row']}: {failure['why']}" for failure in report["troubles"]]
    return lines or ["There is nothing to do."]


def _step_text(step: dict[str, Any]) -> str:
    """Return one step of the dashboard's rules as text: its fields that have a value."""
    return ", ".join(f"{name} {value}" for name, value in step.items() if value is not None)


def _cycle_lines(cycles: list[dict[str, Any]], *, zone: ZoneInfo) -> list[str]:
    """Return the passes of a dashboard's worker, called cycles, as a table for people; times are in `zone`.

    A cycle without an outcome is not over.
    """
    from orchestrator.base.tables import table

    rows = [
        (
            str(cycle["id"]),
            _time(cycle["started_ms"], zone),
            cycle["kind"],
            cycle["outcome"] or "runs",
            cycle["error"] or "",
        )
        for cycle in cycles
    ]
    return table(("cycle", "began", "kind", "outcome", "error"), rows) if rows else ["There were no cycles."]


def _time(at_ms: int, zone: ZoneInfo) -> str:
    """Return a time in epoch ms as date and time to the second, in `zone`."""
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%Y-%m-%d %H:%M:%S")
