"""`POST /loops/{folder}/{action}`: on, off, pause, resume, wake, by the rules of the loop's service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypedDict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.domain.values import Folder
from orchestrator.store.database import Database, Tx

Act = Callable[[Tx, str, str, str], Awaitable[Folder]]
"""`(tx, folder, action, reason)`: apply the action; raises what `service.apply_action` raises."""


class LoopChanged(TypedDict):
    """The group whose loop was changed, and the action that did it."""

    group: str
    action: str


class LoopApi:
    """Changes the loops of groups, which let an agent wake by itself; each change is one transaction."""

    def __init__(self, database: Database, *, act: Act) -> None:
        """`act` applies an action to a group's loop in a transaction of `database`."""
        self._database = database
        self._act = act

    async def act(self, folder: str, action: str, reason: str) -> LoopChanged:
        """Apply an action such as "pause" to the loop of a group.

        `reason` is for the agent that "wake" wakes; it may be empty. Raises what the loop's `apply_action`
        raises.
        """
        async with self._database.transaction() as tx:
            changed_folder = await self._act(tx, folder, action, reason)
        return {"group": changed_folder, "action": action}


def loop_routes(service: LoopApi) -> list[Route]:
    """Return the route that changes a loop."""

    async def change_loop(request: Request) -> Response:
        """Apply the path's action, such as `pause`, to the loop of the group in the path."""
        path = request.path_params
        return JSONResponse(
            await service.act(path["folder"], path["action"], request.query_params.get("reason", ""))
        )

    return [Route("/loops/{folder}/{action}", change_loop, methods=["POST"])]
