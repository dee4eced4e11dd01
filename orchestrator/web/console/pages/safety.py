"""Safety: what each group's agent reaches, what was refused, the audit and the commands of containers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast, get_args
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.responses import Response

from orchestrator.base.terminal_escaping import all_visible
from orchestrator.containers.mount_allowlist import ExtraMounts
from orchestrator.domain.dashboard import Actor
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.network_targets import NetworkTarget, parse_target
from orchestrator.domain.values import Group, RunId
from orchestrator.groups import settings
from orchestrator.proxies import approvals as decisions
from orchestrator.proxies.approvals import Decision, Verdict
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.reports import approvals, audit, costs, group_rules, mcp
from orchestrator.store.access import approvals as approval_store
from orchestrator.store.access.approvals import ApprovalState
from orchestrator.store.audit import AuditView
from orchestrator.store.groups import groups
from orchestrator.web.bodies import whole_number
from orchestrator.web.console.form_tokens import SentForm
from orchestrator.web.console.page import Page, View
from orchestrator.web.console.pages.groups import undo_path

NAMED = ("type", "target", "server", "service", "name", "model", "calendar", "path", "what", "tool")
"""Names in the detail of a row of the audit, of which the first that is there says what it is about."""
MAX_NAMED_CHARS = 120
ROWS, FEW, MANY = 50, 10, 200
FOLDS_AT = 160
"""Characters of what an agent asks with that are shown before the rest is folded."""
EGRESS_REFUSED = "egress.refused"
AUDITED = (
    "audit.added",
    "command.*",
    "turn.*",
    "group.*",
    "access.decided",
    "reminder.changed",
    "task.changed",
    "dashboard.changed",
)
"""Events that come with a row of the audit. Rows that a command in a terminal writes have no event: the page
shows them when it loads itself again, every 30 seconds.
"""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPlace:
    """A place outside that a group's agent was refused, as often as it tried lately."""

    row: int
    """The newest of its rows in the audit."""
    folder: str
    target: str
    reason: str
    times: int
    at_ms: int
    can_once: bool
    """Whether it can be allowed for a while: the network of its group is not closed."""


class StandingRequest(approvals.ApprovalView):
    """A request that waits, or a decision that is in force."""

    is_refused: bool
    """Whether the owner refused it without an end."""


async def show(view: View) -> Response:
    """Show what agents can reach, refusals, containers' commands and approvals; of a single group, its rules.

    All are of the query's group, or of all groups if it names none. Raises `UnknownGroup`.
    """
    home = view.host.home.root
    source = CredentialSource(home, os.environ)
    # `read` reads in a thread: whether a secret is set is read from a file.
    servers = await view.api.lists.read(
        lambda tx: mcp.rows(tx, source.is_usable, home=home, now_ms=view.now_ms)
    )
    async with view.host.reader.reading() as tx:
        all_groups = await groups.every(tx)
        shown_groups = [await groups.known(tx, view.query("group"))] if view.query("group") else all_groups
        folder = shown_groups[0].folder if view.query("group") else None
        refused = await audit.rows(tx, folder, since_ms=0, limit=MANY, only_refused=True)
        commands = await audit.command_rows(tx, folder, limit=FEW)
        stored_requests = await approval_store.waiting_or_in_force(tx, now_ms=view.now_ms)
        decided = await approvals.rows(tx, folder, limit=FEW, now_ms=view.now_ms)
        search = view.host.settings.andy_web_search
        rules = await group_rules.rule_rows(tx, folder, host_search=search) if folder else []
    requests: list[StandingRequest] = [
        {
            **approvals.approval_row(request, now_ms=view.now_ms),
            "is_refused": request.is_refused_permanently,
        }
        for request in stored_requests
        if folder in (None, request.folder)
    ]
    # The page offers no decision about places that the owner has decided about already.
    denied = {(request["group"], request["subject"]) for request in requests if request["is_refused"]}
    allowed = {
        (request["group"], request["subject"])
        for request in requests
        if request["state"] not in ("waiting", "refused")
    }
    places = _refused_places(refused, {group.folder: group for group in shown_groups}, denied | allowed)
    listed_ids = [request["id"] for request in requests]
    orders = view.services.containers.orders
    granted = [await asyncio.to_thread(orders.granted, group) for group in shown_groups]
    return view.render(
        "safety.html",
        group=folder or "",
        choices=view.choices(all_groups),
        names=view.group_names,
        reaches=[
            _reach(view, group, mounts, servers) for group, mounts in zip(shown_groups, granted, strict=True)
        ],
        servers=[server for server in servers if folder is None or folder in server["groups"]],
        places=places[:FEW],
        # Without the refused places, which are listed above.
        refused=_newest_first([row for row in refused if _is_other_refusal(row)])[:FEW],
        commands=commands,
        waiting=[request for request in requests if request["state"] == "waiting"],
        standing=[request for request in requests if request["state"] != "waiting"],  # decisions in force
        decided=[
            request
            for request in decided
            if request["state"] != "waiting" and request["id"] not in listed_ids
        ],
        folds_at=FOLDS_AT,
        rules=rules,
        has_words=lambda code: view.console.catalogue.has(f"safety.answer_{code}"),
        amount_of=costs.in_unit,
    )


def _is_other_refusal(row: AuditView) -> bool:
    """Return whether a refusal in the audit is listed with the other refusals of the page. Pure.

    Refused places on the internet have a list of their own, and what a person typed themselves is not listed.
    """
    return bool(row["kind"] != EGRESS_REFUSED and row["detail"].get("by") != Actor.USER)


def _refused_places(
    rows: list[AuditView], groups_by_folder: Mapping[str, Group], decided_places: Collection[tuple[str, str]]
) -> list[RefusedPlace]:
    """Return the places that groups were refused and that can be allowed, the last refused first. Pure.

    `rows` are audit rows of refusals, oldest first; `decided_places` are pairs of a folder and a place that
    the owner has denied or allowed already. Several refusals of one place are one entry: with the row, the
    reason and the time of the last one, and with their number as `times`.
    """
    places: dict[tuple[str, str], RefusedPlace] = {}
    for row in rows[::-1]:
        detail, folder = row["detail"], row["group"] or ""
        target, key = _target(detail), (folder, str(detail.get("target")))
        if (
            row["kind"] != EGRESS_REFUSED
            or target is None
            or folder not in groups_by_folder
            or key in decided_places
        ):
            continue
        config = settings.of(groups_by_folder[folder])
        if config.egress == "open" or target in config.targets:
            continue
        # `before` is made of later refusals of the same place. `unlogged` counts refusals that came so often
        # that they got no row.
        before = places.get(key)
        places[key] = RefusedPlace(
            row=before.row if before else row["id"],
            folder=folder,
            target=str(target),
            reason=before.reason if before else str(detail.get("reason", "")),
            times=(before.times if before else 0) + 1 + _count(detail.get("unlogged")),
            at_ms=before.at_ms if before else row["at_ms"],
            can_once=config.egress != "none" or config.asks_egress,
        )
    return list(places.values())


def _target(detail: Mapping[str, object]) -> NetworkTarget | None:
    """Return the place (host and port) in the detail of an audit row, or None if it has none."""
    try:
        return parse_target(str(detail.get("target") or ""))
    except ValueError:
        return None


def _count(value: object) -> int:
    """Return a number from the detail of an audit row; 0 if the value is no number."""
    return value if isinstance(value, int) else 0


async def settle_place(view: View, form: SentForm) -> Response:
    """Decide about a network target (host and port) that an agent was refused.

    It is allowed once or for its group, or refused for good.

    The form has the `verdict`, and the `row` of the audit with the refusal. Raises `BadRequest` if there is
    no such verdict or refusal.
    """
    verdict, row_id = form.text("verdict"), whole_number(form.text("row")) or 0
    if verdict not in get_args(Verdict):
        raise BadRequest("A place is allowed once, for the group, or never.")
    now_ms = view.now_ms
    async with view.host.database.transaction() as tx:
        # The form names only a row, which has the place: nothing can be allowed that was not refused. Of the
        # refusals up to this row the newest is read, which is the row itself if that is a refusal.
        rows = await audit.rows(tx, None, since_ms=0, limit=1, before_id=row_id + 1, only_refused=True)
        row = next(
            (refusal for refusal in rows if refusal["id"] == row_id and refusal["kind"] == EGRESS_REFUSED),
            None,
        )
        target = _target(row["detail"]) if row else None
        if row is None or target is None or row["group"] is None:
            raise BadRequest("There is no such refusal: load the page again.")
        await decisions.settle_refused(
            tx,
            row["group"],
            target,
            cast("Verdict", verdict),
            run_id=RunId(row["run"] or ""),
            turn_id=row["turn"],
            by=DECIDER,
            now_ms=now_ms,
        )
        group = await groups.known(tx, row["group"])
        undo = await undo_path(tx, group.folder, now_ms) if verdict == "group" else ""
    done_text = view.t(f".settled_{verdict}", subject=str(target), group=all_visible(group.name[:60]))
    return view.done(_page_path(view), done_text, undo=undo)


def _page_path(view: View) -> str:
    """Return the path of the page that a form was on, with its group."""
    group = parse_qs(urlsplit(view.here).query).get("group", [""])[0]
    return f"/safety?{urlencode({'group': group})}" if group else "/safety"


async def decide(view: View, form: SentForm) -> Response:
    """Allow or refuse the request of an agent in the form.

    To refuse what is in force withdraws it. Raises `BadRequest` if there is no such decision or request.
    """
    request_id, decision = whole_number(form.text("request")) or 0, form.text("decision")
    if decision not in get_args(Decision):
        raise BadRequest("A request is allowed, allowed always, or refused.")
    async with view.host.database.transaction() as tx:
        before = await approval_store.get(tx, request_id)
        decided = await decisions.decide(
            tx, request_id, cast("Decision", decision), by=DECIDER, now_ms=view.now_ms
        )
        name = (await groups.known(tx, decided.folder)).name
    # The catalogue may have a text for the decision and the kind of request; else that for the decision
    # counts.
    is_taken_back = before is not None and before.state is not ApprovalState.WAITING
    text_name = "taken_back" if is_taken_back else f"decided_{decision}_{decided.kind}"
    text_name = text_name if view.console.catalogue.has(f"safety.{text_name}") else f"decided_{decision}"
    text = view.t(f"safety.{text_name}", subject=all_visible(decided.subject), group=all_visible(name[:60]))
    return view.done(_page_path(view), text)


async def show_audit(view: View) -> Response:
    """Show a page of the audit, newest first; the first page also says whether any row was changed.

    For that, rows that were found good lately are read again only with `?read=all`, or after a fault.
    """
    folder, before = view.query("group") or None, view.number("before") or None
    only_refused = view.query("refused") == "yes"
    verdict = None
    if before is None:
        # A live part that loads again must not read the whole audit at each new row.
        reads_all = view.query("read") == "all" and view.part is None
        check = view.console.audit_check.verify
        verdict = await view.api.lists.read(lambda tx: check(tx, now_ms=view.now_ms, reads_all=reads_all))
    async with view.host.reader.reading() as tx:
        rows = await audit.rows(
            tx, folder, since_ms=0, limit=ROWS + 1, before_id=before, only_refused=only_refused
        )
        choices = view.choices(await groups.every(tx))
    shown = _newest_first(rows)[:ROWS]
    return view.render(
        "safety_audit.html",
        verdict=verdict,
        rows=[{**row, "said": row_text(view, row["kind"], row["detail"])} for row in shown],
        older=shown[-1]["id"] if len(rows) > ROWS else None,
        is_first=before is None,
        group=folder or "",
        only_refused=only_refused,
        choices=choices,
        names=view.group_names,
    )


async def show_commands(view: View) -> Response:
    """Show a page of the commands that containers sent to the host, newest first."""
    folder, before = view.query("group") or None, view.number("before") or None
    async with view.host.reader.reading() as tx:
        rows = await audit.command_rows(tx, folder, limit=ROWS + 1, before_number=before)
        choices = view.choices(await groups.every(tx))
    return view.render(
        "safety_commands.html",
        rows=rows[:ROWS],
        older=rows[ROWS - 1]["number"] if len(rows) > ROWS else None,
        is_first=before is None,
        group=folder or "",
        choices=choices,
    )


def _reach(view: View, group: Group, extra: ExtraMounts, servers: list[mcp.McpServerView]) -> GroupReach:
    """Return what a group's agent can reach; `extra` are its granted folders, `servers` all MCP servers."""
    config = settings.of(group)
    return GroupReach(
        folder=group.folder,
        name=group.name,
        egress=config.egress if isinstance(config.egress, str) else "listed",
        targets=tuple(sorted(map(str, config.targets))),
        search=settings.search_service(config, view.host.settings).value,
        mounts=tuple((str(mount.source), mount.target, mount.is_writable) for mount in extra.mounts),
        refused_mounts=extra.refusals,
        servers=tuple(server["name"] for server in servers if group.folder in server["groups"]),
        ask=config.ask,
    )


def row_text(view: View, kind: str, detail: Mapping[str, object]) -> str:
    """Return a row of the audit as a sentence in the page's language; empty if there is no text for its kind.

    `detail` is that of the row. A kind such as `task.paused` without a text of its own has that of all `task`
    rows, about its action.
    """
    family, _, action = kind.partition(".")
    key = f"safety.row_{kind.replace('.', '_')}"
    if not view.console.catalogue.has(key):
        key, detail = f"safety.row_{family}", {"type": action}
    if not view.console.catalogue.has(key):
        return ""
    named = (detail.get(name) for name in NAMED)
    subject = str(next((value for value in named if value not in (None, "")), "–"))[:MAX_NAMED_CHARS]
    # In a row about a command, the subject is the command's name: `dashboard.create_task` is shown as
    # `create task`.
    is_command = kind in ("command", "dashboard") or family in ("reminder", "task")
    shown = subject.removeprefix("dashboard.").replace("_", " ") if is_command else subject
    return view.t(key, what=all_visible(shown))


class AuditLine(AuditView):
    """A row of the audit with its detail in one line."""

    text: str


def _newest_first(rows: list[AuditView]) -> list[AuditLine]:
    """Return audit rows, which are oldest first, in reverse; each with its detail in one line. Pure."""
    return [{**row, "text": audit.detail_text(row["detail"])} for row in reversed(rows)]


PAGE = Page(
    name="safety",
    order=80,
    shows={"/safety": show, "/safety/audit": show_audit, "/safety/commands": show_commands},
    changes={"/safety/approvals": decide, "/safety/refused": settle_place},
    live={
        "approvals": ("approval.*", "message.queued"),
        "refused": (*AUDITED, "approval.*"),
        "asked": ("command.*",),
        "rows": AUDITED,
    },
)
