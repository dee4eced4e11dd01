"""`approvals`: the actions that agents requested approval for, and the owner's decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import RowMapper

NEVER_EXPIRES_MS = 1 << 52
"""The `expires_ms` of a refusal that lasts until the owner withdraws it: a time far in the future."""


class ApprovalKind(StrEnum):
    EGRESS = "egress"
    """A request to connect to an outside address: `host:port`."""
    MCP = "mcp"
    """A request to call a tool of an MCP server: `server/tool`."""


class ApprovalState(StrEnum):
    """The owner's decision about a request of an agent."""

    WAITING = "waiting"
    ONCE = "once"
    """Allowed for a while; for a tool, one call."""
    ALWAYS = "always"
    USED = "used"
    """The one allowed call was made."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A request and its decision."""

    id: int
    folder: Folder
    kind: ApprovalKind
    subject: str
    call_hash: str
    """Hash that identifies one call of a tool with its arguments; empty for other kinds."""
    detail: str
    run_id: RunId
    turn_id: TurnId | None
    """The turn that requested it; None if it is not known."""
    state: ApprovalState
    asked_ms: int
    expires_ms: int
    decided_ms: int | None
    """When the owner decided; None, as `decided_by`, until then."""
    decided_by: str | None

    @property
    def is_refused_permanently(self) -> bool:
        """Whether the owner refused this permanently: the refusal lasts until the owner withdraws it."""
        return self.state is ApprovalState.REFUSED and self.expires_ms >= NEVER_EXPIRES_MS

    def is_waiting(self, now_ms: int) -> bool:
        """Return whether the owner can still decide this request: it is undecided and has not expired."""
        return self.state is ApprovalState.WAITING and now_ms < self.expires_ms


# A decision with a time after `:now` was made while the clock was ahead. A temporary one would be in force
# until the clock has reached that time. `follow_clock` ends it; this condition counts until that is called.
_IN_FORCE = f"""
    expires_ms > :now AND (coalesce(decided_ms, 0) <= :now OR expires_ms >= {NEVER_EXPIRES_MS})
"""
"""The SQL condition that a temporary decision or a permanent refusal is in force, or that a request waits."""

_MAPPER = RowMapper(Approval, "approvals", {"folder": "group_folder"}, assigned=("id",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """An action for which a group's agent needs the owner's approval."""

    folder: Folder
    kind: ApprovalKind
    subject: str
    call_hash: str = ""
    detail: str = ""
    run_id: RunId
    turn_id: TurnId | None


async def add(tx: Tx, request: ApprovalRequest, *, now_ms: int, expires_ms: int) -> Approval:
    """Store a group's request for the owner's approval, and return it.

    The owner can decide it until `expires_ms` (epoch ms).
    """
    row = _MAPPER.values(request) | {
        "state": ApprovalState.WAITING,
        "asked_ms": now_ms,
        "expires_ms": expires_ms,
    }
    cursor = await tx.execute(f"{_MAPPER.insert_sql(row)} RETURNING *", row)
    return _MAPPER.read(await returned(cursor))


async def applicable(tx: Tx, request: ApprovalRequest, *, now_ms: int) -> Approval | None:
    """Return the stored approval that applies to `request` now, or None.

    It is a decision in force, or the same request while it waits for the owner. The subject is an address
    (`host:port`) or a tool (`server/tool`). A permanent approval counts for every request about the subject,
    without an end. Any other decision counts only for the same `call_hash`, so for one call of a tool; for an
    address the hash is always empty. A refusal with that hash precedes a permanent approval.
    """
    return await _MAPPER.fetch_one(
        tx,
        f"""
        SELECT * FROM approvals
        WHERE group_folder = :folder AND kind = :kind AND subject = :subject
          AND (state = 'always' OR (state IN ('waiting', 'once', 'refused') AND call_hash = :hash
                                    AND {_IN_FORCE}))
        ORDER BY CASE state WHEN 'refused' THEN 0 WHEN 'always' THEN 1 ELSE 2 END, id DESC LIMIT 1
        """,  # noqa: S608 - our own text
        {
            "folder": request.folder,
            "kind": request.kind,
            "subject": request.subject,
            "hash": request.call_hash,
            "now": now_ms,
        },
    )


async def temporary_destinations(tx: Tx, folder: Folder, *, now_ms: int) -> list[str]:
    """Return the outside addresses (`host:port`) that a group may reach now by a temporary approval."""
    # An address with the state `once` is allowed any number of times until `expires_ms`.
    rows = await tx.execute_fetchall(
        f"""
        SELECT subject FROM approvals
        WHERE group_folder = :folder AND kind = 'egress' AND state = 'once' AND {_IN_FORCE}
        """,  # noqa: S608 - our own text
        {"folder": folder, "now": now_ms},
    )
    return [row["subject"] for row in rows]


async def end_decisions(tx: Tx, folder: Folder, kind: ApprovalKind, subject: str, *, now_ms: int) -> None:
    """End at once the temporary approvals and all refusals of a subject, such as `host:port`.

    A permanent approval stays, and so do decisions about single tool calls.
    """
    # A permanent refusal has an `expires_ms`, too: `NEVER_EXPIRES_MS`. Only a decision about a single tool
    # call has a call hash.
    await tx.execute(
        """
        UPDATE approvals SET expires_ms = :now
        WHERE group_folder = :folder AND kind = :kind AND subject = :subject AND call_hash = ''
            AND state IN ('once', 'refused') AND expires_ms > :now
        """,
        {"folder": folder, "kind": kind, "subject": subject, "now": now_ms},
    )


async def decide(
    tx: Tx, approval_id: int, state: ApprovalState, *, by: str, expires_ms: int, now_ms: int
) -> None:
    """Record the decision `state` of the person `by` on a request; it is in force until `expires_ms`."""
    await tx.execute(
        "UPDATE approvals SET state = ?, decided_by = ?, decided_ms = ?, expires_ms = ? WHERE id = ?",
        (state, by, now_ms, expires_ms, approval_id),
    )


async def follow_clock(tx: Tx, *, now_ms: int) -> None:
    """After the clock was set back to `now_ms`, correct what was requested and decided while it was ahead.

    A temporary decision ends at once, or it would be in force again when the clock has reached its time. A
    request can be decided for as long from now on as it could from its own time on.
    """
    await tx.execute(
        """
        UPDATE approvals SET expires_ms = :now
        WHERE state IN ('once', 'refused') AND decided_ms > :now AND expires_ms > :now AND expires_ms < :never
        """,
        {"now": now_ms, "never": NEVER_EXPIRES_MS},
    )
    await tx.execute(
        """
        UPDATE approvals SET asked_ms = :now, expires_ms = expires_ms - asked_ms + :now
        WHERE state = 'waiting' AND asked_ms > :now
        """,
        {"now": now_ms},
    )


async def note_used(tx: Tx, approval_id: int) -> None:
    """Record that the single tool call which an approval allowed was made: it allows no other call."""
    await tx.execute("UPDATE approvals SET state = 'used' WHERE id = ? AND state = 'once'", (approval_id,))


async def count_waiting(tx: Tx, folder: Folder, *, now_ms: int) -> int:
    """Count the requests of a group that the owner has not decided and can still decide."""
    cursor = await tx.execute(
        "SELECT count(*) AS n FROM approvals WHERE group_folder = ? AND state = 'waiting' AND expires_ms > ?",
        (folder, now_ms),
    )
    return int((await returned(cursor))["n"])


async def waiting(tx: Tx, folder: Folder | None, *, now_ms: int) -> list[Approval]:
    """Return the undecided requests that the owner can still decide, oldest first.

    Only those of the group `folder`, or those of all groups if it is None.
    """
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM approvals WHERE (:folder IS NULL OR group_folder = :folder)
            AND state = 'waiting' AND expires_ms > :now ORDER BY id
        """,
        {"folder": folder, "now": now_ms},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalCounts:
    """Numbers of requests that a group made, and of refused ones, in some time."""

    asked: int
    refused: int


async def counts_since(tx: Tx, folder: Folder, *, since_ms: int, now_ms: int) -> ApprovalCounts:
    """Return how many approvals a group requested since `since_ms`, and how many were refused since then.

    Times after `now_ms` are of a clock that was ahead, and are not counted.
    Permanent refusals are not counted: the owner will not be asked about these subjects again.
    """
    cursor = await tx.execute(
        """
        SELECT count(*) FILTER (WHERE asked_ms BETWEEN :since AND :now) AS asked,
               count(*) FILTER (WHERE state = 'refused' AND decided_ms BETWEEN :since AND :now
                                AND expires_ms < :never) AS refused
        FROM approvals WHERE group_folder = :folder
        """,
        {"folder": folder, "since": since_ms, "now": now_ms, "never": NEVER_EXPIRES_MS},
    )
    row = await returned(cursor)
    return ApprovalCounts(asked=row["asked"], refused=row["refused"])


async def get(tx: Tx, approval_id: int) -> Approval | None:
    """Return the request with this id, or None."""
    return await _MAPPER.fetch_one(tx, "SELECT * FROM approvals WHERE id = ?", (approval_id,))


async def newest(
    tx: Tx, *, limit: int, folder: Folder | None = None, before_id: int | None = None
) -> list[Approval]:
    """Return at most `limit` requests, newest first, of the group `folder` or of all groups if it is None.

    With `before_id`, only requests with a lower id: the next page of a list.
    """
    # `1 << 62` is above every id: without `before_id`, no row is left out.
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM approvals
        WHERE (:folder IS NULL OR group_folder = :folder) AND id < coalesce(:before, 1 << 62)
        ORDER BY id DESC LIMIT :limit
        """,
        {"folder": folder, "before": before_id, "limit": limit},
    )


async def waiting_or_in_force(tx: Tx, *, now_ms: int) -> list[Approval]:
    """Return all groups' waiting requests, approvals in force and permanent refusals, oldest first.

    Temporary refusals are left out.
    """
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM approvals
        WHERE state = 'always' OR (state IN ('waiting', 'once') AND {_IN_FORCE})
            OR (state = 'refused' AND expires_ms >= :never)
        ORDER BY id
        """,  # noqa: S608 - our own text
        {"now": now_ms, "never": NEVER_EXPIRES_MS},
    )


async def remove_of(tx: Tx, folder: Folder) -> None:
    """Delete all approvals of a group that was unregistered, since another group may get its folder."""
    # On some disks, folders whose names differ only in case are the same folder.
    await tx.execute("DELETE FROM approvals WHERE group_folder = ? COLLATE NOCASE", (folder,))
