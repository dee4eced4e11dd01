"""Reports what agents asked their owner to allow, and what was decided."""

from __future__ import annotations

from typing import Annotated, TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_second
from orchestrator.base.tables import short, table
from orchestrator.base.terminal_escaping import all_visible
from orchestrator.store.access import approvals
from orchestrator.store.access.approvals import Approval, ApprovalState
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups

SHOWN_CHARS = 40
"""Characters of a call that fit into the table."""


class ApprovalView(TypedDict):
    """A request to the owner for permission, and the decision."""

    id: int
    group: str
    kind: Annotated[str, "egress: to reach an address; mcp: to call a tool of an MCP server."]
    subject: Annotated[str, "host:port, or server/tool."]
    detail: Annotated[str, "The arguments of the tool call, without secrets."]
    turn: int | None
    state: Annotated[str, "waiting, lapsed, once, always, used, or refused."]
    asked_ms: int
    expires_ms: Annotated[int | None, "The end of the wait or of the permission; null if it has no end."]
    decided_ms: int | None
    decided_by: str | None


async def rows(
    tx: Tx, folder: str | None, *, limit: int, now_ms: int, before_id: int | None = None
) -> list[ApprovalView]:
    """Return at most `limit` requests of agents to the owner for permission, newest first.

    `folder` is the group, None for all groups. With `before_id`, only requests with a smaller `id` count: the
    next page. Raises `UnknownGroup`.
    """
    known_folder = (await groups.known(tx, folder)).folder if folder is not None else None
    newest = await approvals.newest(tx, limit=limit, folder=known_folder, before_id=before_id)
    return [approval_row(approval, now_ms=now_ms) for approval in newest]


def approval_row(approval: Approval, *, now_ms: int) -> ApprovalView:
    """Return an agent's request for permission as the API and `--json` show it.

    A request that waited for a decision for too long has the state `lapsed`. `expires_ms` is the end of the
    wait or of the decision; None for a permanent permission.
    """
    is_lapsed = approval.state is ApprovalState.WAITING and not approval.is_waiting(now_ms)
    return {
        "id": approval.id,
        "group": approval.folder,
        "kind": approval.kind.value,
        "subject": approval.subject,
        "detail": approval.detail,
        "turn": approval.turn_id,
        "state": "lapsed" if is_lapsed else approval.state.value,
        "asked_ms": approval.asked_ms,
        "expires_ms": None if approval.state is ApprovalState.ALWAYS else approval.expires_ms,
        "decided_ms": approval.decided_ms,
        "decided_by": approval.decided_by,
    }


def lines(rows: list[ApprovalView], *, zone: ZoneInfo) -> list[str]:
    """Return agents' requests for permission as a table for people, with hidden characters written out.

    If the table cuts details, those of waiting requests follow in full below it, and for those of decided
    requests a line says where they are.
    """
    if not rows:
        return ["No agent has asked for anything: see 'ask' in 'andy groups config --help'."]
    # Nobody may be led to allow a call whose end they have not seen.
    shortened = [row for row in rows if len(all_visible(row["detail"])) > SHOWN_CHARS]
    waiting = [row for row in shortened if row["state"] == ApprovalState.WAITING.value]
    hint = ["All of what was decided: 'andy approvals list --json'."] if len(shortened) > len(waiting) else []
    return [
        *_table(rows, zone=zone),
        *(f"Request {row['id']} with all of it: {all_visible(row['detail'])}" for row in waiting),
        *hint,
    ]


def _table(rows: list[ApprovalView], *, zone: ZoneInfo) -> list[str]:
    """Return agents' requests for permission as a table for people, with long details cut."""
    return table(
        ("request", "asked", "group", "to", "with", "state", "by"),
        [
            (
                row["id"],
                local_second(row["asked_ms"], zone),
                row["group"],
                f"{row['kind']} {all_visible(row['subject'])}",
                short(all_visible(row["detail"]), SHOWN_CHARS),
                row["state"],
                row["decided_by"] or "",
            )
            for row in rows
        ],
    )
