"""`model_services` and `model_choices`: the services that have models, and which is chosen for which work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from orchestrator.domain.model_services import Ability, ModelService, ServicePrice, WorkKind
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import Column, RowMapper


def _read_price(text: str) -> ServicePrice:
    """Return the price of a model service from its column, a JSON object with the fields of the class."""
    return ServicePrice(**json.loads(text))


def _write_price(price: ServicePrice) -> str:
    """Return the price of a model service as JSON text for its column."""
    return json.dumps(asdict(price))


def _read_abilities(text: str) -> frozenset[Ability]:
    """Return the abilities of a model service from their column, a JSON list of names."""
    # A newer Andy may have stored abilities that this one does not know.
    known_values = {ability.value for ability in Ability}
    return frozenset(Ability(name) for name in json.loads(text) if name in known_values)


def _write_abilities(abilities: frozenset[Ability]) -> str:
    """Return the abilities of a model service as a JSON list for their column."""
    return json.dumps(sorted(abilities))


_MAPPER = RowMapper(
    ModelService,
    "model_services",
    {
        "price": Column("price", _read_price, _write_price),
        "abilities": Column("abilities", _read_abilities, _write_abilities),
    },
    unread=("set_ms",),
)


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model that the owner chose for a kind of work, as the first choice or as a fallback."""

    work: WorkKind
    model: str
    may_be_dearer: bool = False
    """Whether it may replace a service that costs less."""


async def put(tx: Tx, service: ModelService, *, now_ms: int) -> None:
    """Store a model service; it replaces the one with the same name, if there is one."""
    row = _MAPPER.values(service) | {"set_ms": now_ms}
    await tx.execute(_MAPPER.upsert_sql(row, key="name"), row)


async def remove(tx: Tx, name: str) -> None:
    """Delete the model service with this name, if there is one."""
    await tx.execute("DELETE FROM model_services WHERE name = ?", (name,))


async def every(tx: Tx) -> list[ModelService]:
    """Return the model services that the owner has set up, by name; the one of `.env` is not stored here."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM model_services ORDER BY name")


async def by_name(tx: Tx, name: str) -> ModelService | None:
    """Return the model service with this name, or None."""
    return next((service for service in await every(tx) if service.name == name), None)


async def choices(tx: Tx) -> list[ChosenModel]:
    """Return the models that the owner chose for each kind of work, the first choice before its fallbacks."""
    rows = await tx.execute_fetchall("SELECT * FROM model_choices ORDER BY work, place")
    return [ChosenModel(WorkKind(row["work"]), row["model"], bool(row["may_be_dearer"])) for row in rows]


async def choose(tx: Tx, work: WorkKind, chosen: Sequence[ChosenModel], *, now_ms: int) -> None:
    """Replace the models that the owner chose for a kind of work, the first choice first.

    If `chosen` is empty, the settings decide which model is used.
    """
    await tx.execute("DELETE FROM model_choices WHERE work = ?", (work,))
    for place, choice in enumerate(chosen):
        await tx.execute(
            "INSERT INTO model_choices (work, place, model, may_be_dearer, set_ms) VALUES (?, ?, ?, ?, ?)",
            (work, place, choice.model, choice.may_be_dearer, now_ms),
        )
