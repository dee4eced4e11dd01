"""`model_refusals`: requests that the model service refuses until a key or a setting changes."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.failures import ModelError
from orchestrator.store.database import Tx
from orchestrator.store.row_mapper import RowMapper

OWN_CHOICE = ""
"""The name that means the model which an agent chooses if none is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRefusal:
    """A period in which the model service refuses all requests, or those for one model."""

    id: int
    cause: ModelError
    model: str | None
    """The refused model; None if the service refuses all models."""
    setting: str | None
    """The name under which `.env` has the key; None if it is not known."""
    status: int | None
    """The HTTP status; None if there was no answer."""
    since_ms: int
    notified_ms: int | None
    """When the owner was notified; None until then."""

    def blocks(self, model: str | None) -> bool:
        """Return whether the service would refuse a turn for this model; None is the agent's own choice."""
        return self.model is None or (self.model != OWN_CHOICE and self.model == model)


_MAPPER = RowMapper(
    ModelRefusal, "model_refusals", {"notified_ms": "told_ms"}, unread=("ended_ms", "service")
)


async def begin(
    tx: Tx, *, cause: ModelError, model: str | None, setting: str | None, status: int | None, now_ms: int
) -> None:
    """Record that the model service refuses requests for a model, or all requests.

    An open refusal of the same model with another cause ends, one with the same cause stays as it is. `model`
    is the refused model (None: all), `setting` the name under which `.env` has the key, and `status` the HTTP
    status; the last two are None if they are not known.
    """
    await tx.execute(
        "UPDATE model_refusals SET ended_ms = ? WHERE ended_ms IS NULL AND model IS ? AND cause <> ?",
        (now_ms, model, cause),
    )
    await tx.execute(
        """
        INSERT INTO model_refusals (cause, model, setting, status, since_ms) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO NOTHING
        """,
        (cause, model, setting, status, now_ms),
    )


async def end(tx: Tx, refusal_id: int, *, now_ms: int) -> None:
    """Record that a refusal of the model service has ended, unless that is recorded already."""
    await tx.execute(
        "UPDATE model_refusals SET ended_ms = ? WHERE id = ? AND ended_ms IS NULL", (now_ms, refusal_id)
    )


async def note_notified(tx: Tx, refusal_id: int, *, now_ms: int) -> None:
    """Record that people were notified of a refusal of the model service."""
    await tx.execute("UPDATE model_refusals SET told_ms = ? WHERE id = ?", (now_ms, refusal_id))


async def unfinished(tx: Tx) -> list[ModelRefusal]:
    """Return the refusals of the model service that have not ended, oldest first."""
    return await _MAPPER.fetch_all(tx, "SELECT * FROM model_refusals WHERE ended_ms IS NULL ORDER BY id")
