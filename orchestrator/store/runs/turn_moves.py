"""`turn_moves` and `service_outages`: services that turns have left, and services that are down."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.failures import ModelError
from orchestrator.domain.values import RunId, TurnId
from orchestrator.store.database import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOutage:
    """A period in which a service does not answer the host's own requests."""

    service: str
    cause: ModelError
    status: int | None
    """The HTTP status of its answer; None if there was none."""
    since_ms: int
    notified_ms: int | None
    """When the owner was notified of it."""


async def leave(
    tx: Tx, turn_id: TurnId, service: str, *, run_id: RunId, cause: ModelError, now_ms: int
) -> None:
    """Record that a turn leaves a model service, because the service did not answer it in this run."""
    # For this turn alone: a container could provoke the fault, and must not choose for others.
    await tx.execute(
        """
        INSERT INTO turn_moves (turn_id, service, run_id, cause, at_ms) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO NOTHING
        """,
        (turn_id, service, run_id, cause, now_ms),
    )


async def left_in(tx: Tx, turn_id: TurnId, run_id: RunId | None) -> bool:
    """Return whether a turn has left the model service that this run uses; False without a run."""
    cursor = await tx.execute("SELECT 1 FROM turn_moves WHERE turn_id = ? AND run_id = ?", (turn_id, run_id))
    return await cursor.fetchone() is not None


async def services_left_by_turn(tx: Tx) -> dict[TurnId, set[str]]:
    """Return the names of the model services that each unfinished turn has left, keyed by turn.

    Turns that have left none are not in the result.
    """
    rows = await tx.execute_fetchall(
        """
        SELECT turn_id, service FROM turn_moves JOIN turns ON turns.id = turn_id
        WHERE turns.state IN ('queued', 'running')
        """
    )
    services: dict[TurnId, set[str]] = {}
    for row in rows:
        services.setdefault(TurnId(row["turn_id"]), set()).add(row["service"])
    return services


async def begin_outage(tx: Tx, service: str, *, cause: ModelError, status: int | None, now_ms: int) -> None:
    """Record that a model service is down for the host, unless that is recorded already.

    `cause` is the error of the host's own request, `status` the HTTP status of its answer, None without one.
    """
    await tx.execute(
        """
        INSERT INTO service_outages (service, cause, status, since_ms) VALUES (?, ?, ?, ?)
        ON CONFLICT DO NOTHING
        """,
        (service, cause, status, now_ms),
    )


async def note_notified(tx: Tx, service: str, *, now_ms: int) -> None:
    """Record that the owner was notified that a model service does not answer."""
    await tx.execute(
        "UPDATE service_outages SET notified_ms = ? WHERE service = ? AND ended_ms IS NULL", (now_ms, service)
    )


async def end_outage(tx: Tx, service: str, *, now_ms: int) -> bool:
    """Record that a model service answers again; return False when it was not recorded as down."""
    cursor = await tx.execute(
        "UPDATE service_outages SET ended_ms = ? WHERE service = ? AND ended_ms IS NULL", (now_ms, service)
    )
    return cursor.rowcount == 1


async def outages(tx: Tx) -> list[ServiceOutage]:
    """Return the model services that do not answer now, the longest down first."""
    rows = await tx.execute_fetchall("SELECT * FROM service_outages WHERE ended_ms IS NULL ORDER BY id")
    return [
        ServiceOutage(
            service=row["service"],
            cause=ModelError(row["cause"]),
            status=row["status"],
            since_ms=row["since_ms"],
            notified_ms=row["notified_ms"],
        )
        for row in rows
    ]
