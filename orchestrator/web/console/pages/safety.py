"""Safety: what each group's agent reaches, what was refused, the audit and the commands of containers."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any, cast, get_args

from starlette.responses import Response

from orchestrator.base.terminal_escaping import all_visible
from orchestrator.containers.allowlist import Extra
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Group
from orchestrator.groups import settings
from orchestrator.proxies import approvals as decisions
from orchestrator.proxies.approvals import Decision
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.reports import approvals, audit, mcp
from orchestrator.store import approvals as approval_store
from orchestrator.store import groups
from orchestrator.web.console.forms import SentForm
from orchestrator.web.console.page import Page, View

ROWS, FEW = 50, 10
AUDITED = (
    "audit.added",
    "command.*",
    "turn.*",
    "group.*",
    "reminder.changed",
    "task.changed",
    "dashboard.changed",
)
"""Events that come with a row of the audit. Rows of commands in a terminal are seen by the clock."""
DECIDER = "the console"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReach:
    """The things that a group's agent can reach besides its own folder."""

    folder: str
    name: str
    egress: str
    """`none`, `open`, or `listed` with the places in `targets`."""
    targets: tuple[str, ...]
    search: str
    """The service that searches the web for it, or `off`."""
    mounts: tuple[tuple[str, str, bool], ...]
    """Each that is granted: its path on this machine, that in the container, whether it is writable."""
    refused_mounts: tuple[str, ...]
    servers: tuple[str, ...]
    ask: tuple[str, ...]
    """The actions that the agent does only after the owner has allowed them."""


async def show(view: View) -> Response:
    """Show what agents reach, and the newest of what was refused."""
    home = view.web.host.home.root
    source = CredentialSource(home, os.environ)
    # In a thread of its own: whether a secret is set is read from a file.
    servers = await view.api.lists.look(
        lambda tx: mcp.rows(tx, lambda name: source.value(name) is not None, home=home)
    )
    async with view.web.host.reader.reading() as tx:
        found = await groups.every(tx)
        refused = await audit.rows(tx, None, since=0, limit=FEW, only_refused=True)
        commands = await audit.command_rows(tx, None, limit=FEW)
        asked = await approval_store.open_and_standing(tx, now_ms=view.now_ms)
        decided = await approvals.rows(tx, None, limit=FEW, now_ms=view.now_ms)
    requests = [approvals.approval_row(one, now_ms=view.now_ms) for one in asked]
    orders = view.web.containers.orders
    granted = [await asyncio.to_thread(orders.granted, group) for group in found]
    return view.render(
        "safety.html",
        reaches=[_reach(view, *one, servers) for one in zip(found, granted, strict=True)],
        servers=servers,
        refused=_newest_first(refused),
        commands=commands,
        waiting=[one for one in requests if one["state"] == "waiting"],
        always=[one for one in requests if one["state"] == "always"],
        decided=[one for one in decided if one["state"] not in ("waiting", "always")],
    )


async def decide(view: View, form: SentForm) -> Response:
    """Allow or refuse what an agent asked for, or take back what was allowed."""
    number, decision = form.text("request"), form.text("decision")
    if decision not in get_args(Decision):
        raise BadRequest("A request is allowed, allowed always, or refused.")
    request_id = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0
    async with view.web.host.database.transaction() as tx:
        decided = await decisions.decide(
            tx, request_id, cast("Decision", decision), by=DECIDER, now_ms=view.now_ms
        )
    view.web.host.bus.publish("approval.decided", group=decided.folder, detail=str(decided.id))
    return view.done("/safety", view.t(f".decided_{decision}", subject=all_visible(decided.subject)))


async def show_audit(view: View) -> Response:
    """Show a page of the audit, newest first; its first page says whether every row is as it was written."""
    folder, before = view.query("group") or None, view.number("before") or None
    only_refused = view.query("refused") == "yes"
    verdict = None
    if before is None:
        check, reads_all = view.console.audit_check.verify, view.query("read") == "all" and view.part is None
        verdict = await view.api.lists.look(lambda tx: check(tx, now_ms=view.now_ms, reads_all=reads_all))
    async with view.web.host.reader.reading() as tx:
        rows = await audit.rows(tx, folder, since=0, limit=ROWS + 1, before=before, only_refused=only_refused)
        choices = view.choices(await groups.every(tx))
    shown = _newest_first(rows)[:ROWS]
    return view.render(
        "safety_audit.html",
        verdict=verdict,
        rows=shown,
        older=shown[-1]["id"] if len(rows) > ROWS else None,
        is_first=before is None,
        group=folder or "",
        only_refused=only_refused,
        choices=choices,
    )


async def show_commands(view: View) -> Response:
    """Show a page of what containers asked of the host, newest first."""
    folder, before = view.query("group") or None, view.number("before") or None
    async with view.web.host.reader.reading() as tx:
        rows = await audit.command_rows(tx, folder, limit=ROWS + 1, before=before)
        choices = view.choices(await groups.every(tx))
    return view.render(
        "safety_commands.html",
        rows=rows[:ROWS],
        older=rows[ROWS - 1]["number"] if len(rows) > ROWS else None,
        is_first=before is None,
        group=folder or "",
        choices=choices,
    )


def _reach(view: View, group: Group, extra: Extra, servers: list[dict[str, Any]]) -> GroupReach:
    config = settings.of(group)
    return GroupReach(
        folder=group.folder,
        name=group.name,
        egress=config.egress if isinstance(config.egress, str) else "listed",
        targets=tuple(sorted(map(str, config.targets))),
        search=settings.search_service(config, view.web.host.settings).value,
        mounts=tuple((str(one.source), one.target, one.is_writable) for one in extra.mounts),
        refused_mounts=extra.refusals,
        servers=tuple(one["name"] for one in servers if group.folder in one["groups"]),
        ask=config.ask,
    )


def _newest_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the audit newest first, each with its detail in one line. Pure."""
    return [{**row, "text": audit.detail_text(row["detail"])} for row in reversed(rows)]


PAGE = Page(
    name="safety",
    order=80,
    shows={"/safety": show, "/safety/audit": show_audit, "/safety/commands": show_commands},
    changes={"/safety/approvals": decide},
    live={
        "approvals": ("approval.*", "message.queued"),
        "refused": AUDITED,
        "asked": ("command.*",),
        "rows": AUDITED,
    },
)
