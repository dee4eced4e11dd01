"""Start the orchestrator again if a port in use prevented its start.

Docker publishes a port when it starts a container. If another program has that port, the start fails, and no
restart policy retries: after a reboot, Andy would stay down until somebody looked.
"""

from __future__ import annotations

import asyncio

import httpx
import structlog

from orchestrator.compose.socket_filter.inventory import UNKNOWN_ANSWER, Engine, orchestrators
from orchestrator.compose.socket_filter.requests import RequestForbidden

log = structlog.get_logger(__name__)

EVERY_SECONDS = 15.0
PORT_TAKEN = ("address already in use", "port is already allocated")
"""Docker's messages about a port in use; after another failure the start is not retried."""


async def retry_starts(engine: Engine, *, own_id: str, every_seconds: float = EVERY_SECONDS) -> None:
    """Start Andy's container (orchestrator) again and again, if a port in use prevented its start.

    Endless, until cancelled; `own_id` is the id of the filter's container.
    """
    while True:
        await asyncio.sleep(every_seconds)
        try:
            await start_if_port_was_taken(engine, own_id=own_id)
        # Also an answer of the engine that cannot be read must not end the tries for good.
        except (httpx.HTTPError, RequestForbidden, *UNKNOWN_ANSWER) as error:
            log.warning("filter.not_looked", reason=str(error) or repr(error))


async def start_if_port_was_taken(engine: Engine, *, own_id: str) -> bool:
    """Try to start the orchestrator if a port in use prevented its last start. Return whether it was tried.

    `own_id` is the id of the filter's container, in whose Compose project the orchestrator is.

    Raises:
        httpx.HTTPError: the engine does not answer.
        RequestForbidden: the filter does not know its own container.
    """
    _, containers = await orchestrators(engine, own_id=own_id)
    newest = max(containers, key=lambda container: int(container["Created"]), default=None)
    if newest is None or newest["State"] not in ("created", "exited"):
        return False
    details = await engine.container(newest["Id"])
    if details is None or not any(text in details["State"]["Error"] for text in PORT_TAKEN):
        return False
    failure = await engine.start(newest["Id"])
    log.info("filter.started_andy", is_running=failure is None, reason=failure)
    return True
