"""`andy usage`, `andy budget`, `andy audit`: use of the model, its limits, and the record of requests."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from orchestrator.cli.exit_codes import FAILED, UsageError
from orchestrator.cli.options import (
    GroupOption,
    HomeOption,
    JsonOption,
    LimitOption,
    read,
    show,
)

if TYPE_CHECKING:
    from orchestrator.store.audit import AuditView
    from orchestrator.store.database import Tx

budget_app = App(name="budget")
audit_app = App(name="audit")


def usage(
    group: GroupOption = None,
    *,
    by: Annotated[
        Literal["day", "group", "task", "kind", "model", "service", "agent"],
        Parameter(help="The field to sum up by; `agent` separates subagents from the agent itself."),
    ] = "day",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show tokens, estimated costs, and the used part of each budget. Works with Andy down.

    Example: `andy usage --by group`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import costs

    at = terminal.moment(home)
    report = terminal.read(home, lambda tx: costs.usage(tx, group, by=by, now_ms=at.now_ms, zone=at.zone))
    show(report, costs.usage_lines, as_json=as_json)


@budget_app.command(name="list")
def list_budgets(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the budgets with the used part of each. Works with Andy down.

    Example: `andy budget list`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import costs

    at = terminal.moment(home)
    read(
        home,
        lambda tx: costs.budgets(tx, now_ms=at.now_ms, zone=at.zone),
        costs.budget_lines,
        as_json=as_json,
    )


@budget_app.command(name="set")
def set_budget(
    amount: Annotated[
        str,
        Parameter(
            help="A number with its unit, usd or tokens: 5usd, 200000tokens. Short for tokens: 200k, 2M."
        ),
    ],
    /,
    group: GroupOption = None,
    *,
    per: Annotated[
        Literal["day", "month"], Parameter(help="The period of the budget, in the time zone of TZ.")
    ],
    background: Annotated[
        bool,
        Parameter(
            negative="", help="Limit only work that nobody waits for: tasks, dashboard workers, loops."
        ),
    ] = False,
    home: HomeOption = None,
) -> None:
    """Limit the use of the model by one group or by all together, from the next request on.

    A spent budget of all groups does not stop chat from the main group; a budget of main does.

    Tokens of all kinds are added up.

    Example: `andy budget set 5usd --per day`

    Example: `andy budget set 200000tokens family --per month`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import costs
    from orchestrator.store.money.budgets import Period

    try:
        parsed = costs.parse_amount(amount)
    except costs.BadAmount as error:
        raise UsageError(str(error)) from error

    async def act(tx: Tx, now_ms: int) -> None:
        """Store the budget that the options give, in a transaction of the database."""
        await costs.set_budget(
            tx, parsed, period=Period(per), folder=group, is_background=background, now_ms=now_ms
        )

    asyncio.run(terminal.change(home, act))
    print(costs.set_text(parsed, period=Period(per), folder=group, is_background=background))


@budget_app.command(name="remove")
def remove_budget(
    number: Annotated[int, Parameter(help="The budget, by its id in 'andy budget list'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Remove a budget, from the next request on.

    Example: `andy budget remove 1`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import costs

    asyncio.run(terminal.change(home, lambda tx, now_ms: costs.remove_budget(tx, number, now_ms=now_ms)))
    print(f"Budget {number} is removed.")


@audit_app.default
def audit(
    group: GroupOption = None,
    *,
    since: Annotated[
        str | None, Parameter(help="A time, or how long ago: 2026-11-22T09:00, 30m, 2h, 7d. [the beginning]")
    ] = None,
    limit: LimitOption = 200,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the newest requests to the model, refusals, connections and commands. Works with Andy down.

    Example: `andy audit family --since 2h`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import audit as audit_reports
    from orchestrator.store.groups import groups

    at = terminal.moment(home)
    begin_ms = terminal.since_ms(since, at)

    async def rows(tx: Tx) -> list[AuditView]:
        """Return the rows of the audit log, also those of a removed group.

        Raises `UnknownGroup` if there are no rows and no group has the name.
        """
        audit_rows = await audit_reports.rows(tx, group, since_ms=begin_ms, limit=limit)
        if group is not None and not audit_rows:
            await groups.known(tx, group)
        return audit_rows

    read(
        home,
        rows,
        partial(audit_reports.lines, zone=at.zone),
        as_json=as_json,
    )


@audit_app.command
def verify(*, as_json: JsonOption = False, home: HomeOption = None) -> int:
    """Check by the hashes that link the rows whether one was changed or is missing. Exits with 1 if so.

    Example: `andy audit verify`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import audit as audit_reports

    verdict = terminal.read(home, audit_reports.verify)
    show(verdict, audit_reports.verdict_lines, as_json=as_json)
    return 0 if verdict["ok"] else FAILED
