"""`andy approvals`."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from orchestrator.cli.options import GroupOption, HomeOption, JsonOption, LimitOption, read

if TYPE_CHECKING:
    from orchestrator.proxies.approvals import Decision

approvals_app = App(name="approvals")
NumberArgument = Annotated[int, Parameter(help="The request, by its number in 'andy approvals list'.")]
DECIDER = "the command line"


@approvals_app.command(name="list")
def list_approvals(
    group: GroupOption = None,
    *,
    limit: LimitOption = 30,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the requests of agents for your approval with the decisions, newest first. Works with Andy down.

    Example: `andy approvals list`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import approvals

    at = terminal.moment(home)
    read(
        home,
        lambda tx: approvals.rows(tx, group, limit=limit, now_ms=at.now_ms),
        partial(approvals.lines, zone=at.zone),
        as_json=as_json,
    )


@approvals_app.command
def allow(
    number: NumberArgument,
    /,
    *,
    always: Annotated[
        bool, Parameter(negative="", help="Allow it from now on, not only for this call or for 15 minutes.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Allow a request of an agent: a tool call once, or a network address for 15 minutes.

    Example: `andy approvals allow 7 --always`
    """
    _decide(number, "always" if always else "allow", home)


@approvals_app.command
def refuse(number: NumberArgument, /, *, home: HomeOption = None) -> None:
    """Refuse a request of an agent, or withdraw a permission that was given.

    Example: `andy approvals refuse 7`
    """
    _decide(number, "refuse", home)


def _decide(number: int, decision: Decision, home: Path | None) -> None:
    """Record the owner's decision about the request `number` of an agent, and print the outcome.

    `home` is the option `--home`.
    """
    from orchestrator.base.terminal_escaping import all_visible
    from orchestrator.cli import terminal
    from orchestrator.proxies import approvals

    decided = asyncio.run(
        terminal.change(
            home, lambda tx, now_ms: approvals.decide(tx, number, decision, by=DECIDER, now_ms=now_ms)
        )
    )
    print(f"{approvals.outcome(decided)}: {all_visible(decided.subject)} for '{decided.folder}'.")
