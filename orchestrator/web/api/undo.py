"""`/turns/{id}/undo`: undo the effects of a turn."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.store.database import Database, Tx
from orchestrator.undo.feature import UndoFeature
from orchestrator.undo.service import UndoDone
from orchestrator.web.bodies import parse_body

BY_API = "HTTP API"
"""The author of the undos that programs make."""
MAX_DIGITS = 16


class UndoRequest(BaseModel):
    """The body of `POST /turns/{id}/undo`."""

    model_config = ConfigDict(extra="forbid")

    anyway: bool = False
    """Whether to undo also what was changed later."""


class UndoApi:
    """Undoes a turn in a transaction."""

    def __init__(self, database: Database, undo: UndoFeature) -> None:
        self._database = database
        self._undo = undo
        self._service = undo.service

    async def undo(self, number: int, *, by: str, is_forced: bool) -> UndoDone:
        """Undo the turn with this number; with `is_forced`, also what was changed since the turn.

        `by` is the author of the undo. Raises what `UndoService.by_number` and `UndoService.undo` raise.
        """

        async def undo_rows(tx: Tx) -> UndoDone:
            """Undo the turn's rows in the transaction that it is given."""
            turn = await self._service.by_number(tx, number)
            return await self._service.undo(tx, turn, by=by, is_forced=is_forced)

        done = await self._database.write(undo_rows)
        # After the transaction: a large folder must not hold up the database's thread. But before the answer,
        # because the client may read the restored files next.
        await self._undo.catch_up(done.plan.turn.folder)
        return done


def undo_routes(api: UndoApi) -> list[Route]:
    """Return the route that undoes a turn."""

    async def undo(request: Request) -> Response:
        """Undo what a turn did; a path without a number of a turn finds none."""
        body = await parse_body(request, UndoRequest)
        text = request.path_params["id"]
        number = int(text) if text.isascii() and text.isdigit() and len(text) < MAX_DIGITS else 0
        done = await api.undo(number, by=BY_API, is_forced=body.anyway)
        return JSONResponse(done.to_row())

    return [Route("/turns/{id}/undo", undo, methods=["POST"])]
