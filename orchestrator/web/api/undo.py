"""`/turns/{id}/undo`: undo the effects of a turn."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.store.database import Database, Tx
from orchestrator.undo.feature import UndoFeature
from orchestrator.undo.service import UndoDone
from orchestrator.web.bodies import parse_body, whole_number

BY_API = "HTTP API"
"""The author of the undos that programs make."""


class UndoRequest(BaseModel):
    """The body of `POST /turns/{id}/undo`."""

    model_config = ConfigDict(extra="forbid")

    anyway: bool = False
    """Whether to undo also what was changed later."""


class UndoApi:
    """Undoes a turn in a transaction."""

    def __init__(self, database: Database, undo: UndoFeature) -> None:
        """`undo` has the rules of an undo, and restores a group's files."""
        self._database = database
        self._undo = undo
        self._service = undo.service

    async def undo(self, number: int, *, by: str, is_forced: bool) -> UndoDone:
        """Undo what the turn with this number did, and return what was undone.

        With `is_forced`, things that were changed again since the turn are undone, too. `by` is the author of
        the undo. The group's files are restored before this returns.

        Raises what `UndoService.by_number` and `UndoService.undo` raise.
        """

        async def undo_rows(tx: Tx) -> UndoDone:
            """Undo what the turn changed in the store, in the transaction `tx`."""
            turn = await self._service.by_number(tx, number)
            return await self._service.undo(tx, turn, by=by, is_forced=is_forced)

        done = await self._database.write(undo_rows)
        # Files are restored after the transaction, because a large folder would hold up the database's
        # thread, and before the answer, because the client may read the restored files next.
        await self._undo.catch_up(done.plan.turn.folder)
        return done


def undo_routes(api: UndoApi) -> list[Route]:
    """Return the route that undoes a turn."""

    async def undo(request: Request) -> Response:
        """Undo what the turn in the path did, and answer with what was undone.

        A path that is no number of a turn counts as 0, which no turn has.
        """
        body = await parse_body(request, UndoRequest)
        done = await api.undo(whole_number(request.path_params["id"]) or 0, by=BY_API, is_forced=body.anyway)
        return JSONResponse(done.to_row())

    return [Route("/turns/{id}/undo", undo, methods=["POST"])]
