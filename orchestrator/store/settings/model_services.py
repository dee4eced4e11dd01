"""`model_services` and `model_choices`: the services that have models, and which is chosen for which work."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from orchestrator.domain.model_services import Ability, ModelService, ServicePrice, WorkKind
from orchestrator.store.database import Tx


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A choice of the owner's, as written."""

    work: WorkKind
    model: str
    may_be_dearer: bool = False
    """Whether it may replace a service that costs less."""


async def put(tx: Tx, service: ModelService, *, now_ms: int) -> None:
    """Store a service in place of the one with this name, if there is one."""
    await tx.execute(
        """
        INSERT OR REPLACE INTO model_services
            (name, kind, url, key_env, model, window, price, abilities, tested_ms, first_byte_seconds, set_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (
            service.name,
            service.kind,
            service.url,
            service.key_env,
            service.model,
            service.window,
            json.dumps(asdict(service.price)) if service.price else None,
            json.dumps(sorted(service.abilities)),
            service.tested_ms,
            service.first_byte_seconds,
            now_ms,
        ),
    )


async def remove(tx: Tx, name: str) -> None:
    await tx.execute("DELETE FROM model_services WHERE name = ?", (name,))


async def every(tx: Tx) -> list[ModelService]:
    """Return the services by their names, without the one of `.env`."""
    rows = await tx.execute_fetchall("SELECT * FROM model_services ORDER BY name")
    return [_from_row(row) for row in rows]


async def by_name(tx: Tx, name: str) -> ModelService | None:
    return next((one for one in await every(tx) if one.name == name), None)


async def choices(tx: Tx) -> list[ChosenModel]:
    """Return the owner's choices, fallbacks in their order."""
    rows = await tx.execute_fetchall("SELECT * FROM model_choices ORDER BY work, place")
    return [ChosenModel(WorkKind(row["work"]), row["model"], bool(row["may_be_dearer"])) for row in rows]


async def choose(tx: Tx, work: WorkKind, chosen: Sequence[ChosenModel], *, now_ms: int) -> None:
    """Replace the choice for a kind of work; no choice leaves it to the settings."""
    await tx.execute("DELETE FROM model_choices WHERE work = ?", (work,))
    for place, one in enumerate(chosen):
        await tx.execute(
            "INSERT INTO model_choices (work, place, model, may_be_dearer, set_ms) VALUES (?, ?, ?, ?, ?)",
            (work, place, one.model, one.may_be_dearer, now_ms),
        )


def _from_row(row: sqlite3.Row) -> ModelService:
    known = {one.value for one in Ability}
    return ModelService(
        name=row["name"],
        kind=row["kind"],
        url=row["url"],
        key_env=row["key_env"],
        model=row["model"],
        window=row["window"],
        price=ServicePrice(**json.loads(row["price"])) if row["price"] else None,
        abilities=frozenset(Ability(name) for name in json.loads(row["abilities"]) if name in known),
        tested_ms=row["tested_ms"],
        first_byte_seconds=row["first_byte_seconds"],
    )
