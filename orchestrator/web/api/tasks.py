"""The HTTP routes of scheduled tasks: `POST /tasks` adds one, `POST /tasks/{id}/{action}` changes one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_runner.wire.mailbox import MAX_TEXT_CHARS, ScheduleTask, UpdateTask
from orchestrator.base.clock import Clock
from orchestrator.domain.values import ChatJid, ScheduledTask
from orchestrator.scheduler import scheduled_task_service
from orchestrator.scheduler.scheduled_task_service import TaskView
from orchestrator.store.database import Database, Tx
from orchestrator.web.bodies import parse_body


class NewTask(BaseModel):
    """The body of `POST /tasks`: the fields of the tool `schedule_task`; `once` takes words, too."""

    model_config = ConfigDict(extra="forbid")

    group: str = Field(min_length=1, max_length=64)
    prompt: str = Field(max_length=MAX_TEXT_CHARS)
    schedule_type: Literal["cron", "interval", "once"]
    schedule_value: str = Field(min_length=1, max_length=200)
    context_mode: Literal["group", "isolated"] = "isolated"

    def to_request(self) -> ScheduleTask:
        """Return the request to schedule a task, in the form in which the service takes it.

        `model_construct` leaves out the checks of `ScheduleTask`: this body was checked already, and an empty
        prompt is refused by the service itself.
        """
        return ScheduleTask.model_construct(**self.model_dump(exclude={"group"}))


class TaskApi:
    """Changes scheduled tasks for clients; each change is one transaction."""

    def __init__(
        self,
        database: Database,
        *,
        times: scheduled_task_service.ScheduleReader,
        clock: Clock,
    ) -> None:
        """`database` stores the tasks, and `times` reads the times and schedules that people write."""
        self._database = database
        self._times = times
        self._clock = clock

    async def add(self, folder: str, request: ScheduleTask, *, asked_in: ChatJid | None = None) -> TaskView:
        """Add a scheduled task to a group, and return it. Raises what `scheduled_task_service.add` raises.

        Its answers go to the chat `asked_in`; None means the group's own.
        """
        return await self._change(
            lambda tx, now_ms: scheduled_task_service.add(
                tx, folder, request, self._times, asked_in=asked_in, now_ms=now_ms
            )
        )

    async def act(self, task_id: str, action: str) -> TaskView:
        """Apply "pause", "resume", "cancel", "restore" or "run" to a task, and return it.

        Raises what `scheduled_task_service.apply_action` raises.
        """
        return await self._change(
            lambda tx, now_ms: scheduled_task_service.apply_action(
                tx, task_id, action, self._times, now_ms=now_ms
            )
        )

    async def change(self, request: UpdateTask) -> TaskView:
        """Change a task's prompt or schedule, and return it.

        Raises what `scheduled_task_service.change` raises.
        """
        return await self._change(
            lambda tx, now_ms: scheduled_task_service.change(tx, request, self._times, now_ms=now_ms)
        )

    async def _change(self, act: Callable[[Tx, int], Awaitable[ScheduledTask]]) -> TaskView:
        """Call `act(tx, now_ms)` in a transaction, and return its task in the form of the API."""
        async with self._database.transaction() as tx:
            return scheduled_task_service.to_row(await act(tx, self._clock.now_ms()))


def task_routes(service: TaskApi) -> list[Route]:
    """Return the routes that add and change scheduled tasks."""

    async def add(request: Request) -> Response:
        """Add the scheduled task in the body to its group, and answer with it."""
        body: NewTask = await parse_body(request, NewTask)
        return JSONResponse(await service.add(body.group, body.to_request()), status_code=201)

    async def act(request: Request) -> Response:
        """Apply the action in the path, such as `pause`, to the task in the path, and answer with it."""
        return JSONResponse(await service.act(request.path_params["id"], request.path_params["action"]))

    return [
        Route("/tasks", add, methods=["POST"]),
        Route("/tasks/{id}/{action}", act, methods=["POST"]),
    ]
