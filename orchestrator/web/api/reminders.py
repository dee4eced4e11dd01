"""`/reminders`: list, add, move and cancel them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.base.clock import Clock
from orchestrator.dashboard.services.reminders import ReminderService, ReminderView
from orchestrator.store.database import Database, Tx
from orchestrator.web.bodies import parse_body


class NewReminder(BaseModel):
    """The body of `POST /reminders`."""

    model_config = ConfigDict(extra="forbid")

    group: str = Field(min_length=1, max_length=64)
    text: str
    at: str = Field(min_length=1, max_length=100)


class NewTime(BaseModel):
    """The body of `POST /reminders/{id}/move`."""

    model_config = ConfigDict(extra="forbid")

    at: str = Field(min_length=1, max_length=100)


class ReminderHandler:
    """Lists and changes reminders for clients; each change is one transaction."""

    def __init__(self, database: Database, *, service: ReminderService, clock: Clock) -> None:
        """`service` has the rules of reminders, which `database` stores."""
        self._database = database
        self._service = service
        self._clock = clock

    async def every(self, folder: str | None) -> list[ReminderView]:
        """Return the pending reminders of a group; None stands for all groups. Raises `UnknownGroup`."""
        async with self._database.reading() as tx:
            return await self._service.list_views(tx, folder)

    async def add(self, body: NewReminder) -> ReminderView:
        """Add a reminder to a group, and return it. Raises what `ReminderService.add` raises."""
        return await self._change(
            lambda tx, now_ms: self._service.add(tx, body.group, body.text, body.at, now_ms=now_ms)
        )

    async def move(self, reminder: str, time_text: str | None, *, text: str | None = None) -> ReminderView:
        """Change the time or the text of the reminder with the id `reminder`, and return it.

        A time or text of None stays unchanged. Raises what `ReminderService.move` raises.
        """
        return await self._change(
            lambda tx, now_ms: self._service.move(tx, reminder, time_text, text=text, now_ms=now_ms)
        )

    async def cancel(self, reminder: str) -> ReminderView:
        """Cancel the reminder with this id, and return it. Raises what `ReminderService.cancel` raises."""
        return await self._change(lambda tx, now_ms: self._service.cancel(tx, reminder, now_ms=now_ms))

    async def restore(self, reminder: str) -> ReminderView:
        """Restore the cancelled reminder with this id. Raises what `ReminderService.restore` raises."""
        return await self._change(lambda tx, now_ms: self._service.restore(tx, reminder, now_ms=now_ms))

    async def _change(self, act: Callable[[Tx, int], Awaitable[ReminderView]]) -> ReminderView:
        """Call `act(tx, now_ms)` in a transaction, and return the reminder that it returns."""
        async with self._database.transaction() as tx:
            return await act(tx, self._clock.now_ms())


def reminder_routes(handler: ReminderHandler) -> list[Route]:
    """Return the routes that list, add, move and cancel reminders."""

    async def every(request: Request) -> Response:
        """Answer with the pending reminders, of the group in the query if there is one."""
        return JSONResponse({"reminders": await handler.every(request.query_params.get("group"))})

    async def add(request: Request) -> Response:
        """Add the reminder in the body, and answer with it."""
        return JSONResponse(await handler.add(await parse_body(request, NewReminder)), status_code=201)

    async def move(request: Request) -> Response:
        """Change the time of the reminder in the path, and answer with it."""
        body: NewTime = await parse_body(request, NewTime)
        return JSONResponse(await handler.move(request.path_params["id"], body.at))

    async def cancel(request: Request) -> Response:
        """Cancel the reminder in the path, and answer with it."""
        return JSONResponse(await handler.cancel(request.path_params["id"]))

    return [
        Route("/reminders", every),
        Route("/reminders", add, methods=["POST"]),
        Route("/reminders/{id}/move", move, methods=["POST"]),
        Route("/reminders/{id}/cancel", cancel, methods=["POST"]),
    ]
