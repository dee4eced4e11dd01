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
    kind: Annotated[str, "egress: to reach a place; mcp: to call a tool of an MCP server."]
    subject: Annotated[str, "host:port, or server/tool."]
    detail: Annotated[str, "What the tool is called with; secrets are taken out."]
    turn: int | None
    state: Annotated[str, "waiting, lapsed, once, always, used, or refused."]
    asked_ms: int
    expires_ms: Annotated[int | None, "Until when it waits or holds; null for ever."]
    decided_ms: int | None
    decided_by: str | None


async def rows(
    tx: Tx, folder: str | None, *, limit: int, now_ms: int, before: int | None = None
) -> list[ApprovalView]:
    """Return the newest requests, or those before an `id`, newest first. Raises `UnknownGroup`."""
    group = (await groups.known(tx, folder)).folder if folder is not None else None
    found = await approvals.newest(tx, limit=limit, folder=group, before=before)
    return [approval_row(one, now_ms=now_ms) for one in found]


def approval_row(one: Approval, *, now_ms: int) -> ApprovalView:
    is_lapsed = one.state is ApprovalState.WAITING and not one.is_waiting(now_ms)
    return {
        "id": one.id,
        "group": one.folder,
        "kind": one.kind.value,
        "subject": one.subject,
        "detail": one.detail,
        "turn": one.turn_id,
        "state": "lapsed" if is_lapsed else one.state.value,
        "asked_ms": one.asked_ms,
        "expires_ms": None if one.state is ApprovalState.ALWAYS else one.expires_ms,
        "decided_ms": one.decided_ms,
        "decided_by": one.decided_by,
    }


def lines(found: list[ApprovalView], *, zone: ZoneInfo) -> list[str]:
    """Return the requests as a table for people, with hidden characters written out.

    The details of waiting requests follow in full below the table, if the table cuts them.
    """
    if not found:
        return ["No agent has asked for anything: see 'ask' in 'andy groups config --help'."]
    # Nobody may be led to allow a call whose end they have not seen.
    cut = [row for row in found if len(all_visible(row["detail"])) > SHOWN_CHARS]
    whole = [row for row in cut if row["state"] == ApprovalState.WAITING.value]
    others = ["All of what was decided: 'andy approvals list --json'."] if len(cut) > len(whole) else []
    return [
        *_table(found, zone=zone),
        *(f"Request {row['id']} with all of it: {all_visible(row['detail'])}" for row in whole),
        *others,
    ]


def _table(found: list[ApprovalView], *, zone: ZoneInfo) -> list[str]:
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
            for row in found
        ],
    )
