"""`python -m orchestrator.compose.socket_filter`: filter requests to Docker's socket until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath

from orchestrator.base import logging
from orchestrator.compose.self_inspect import FILTER_SOCKET, own_id
from orchestrator.compose.socket_filter.checks import Checks
from orchestrator.compose.socket_filter.inventory import Engine, survey
from orchestrator.compose.socket_filter.retry import retry_starts
from orchestrator.compose.socket_filter.server import FilterServer

ENGINE, HOME = "/var/run/docker.sock", "/andy"


def main() -> None:
    """Read the arguments and run the filter."""
    parser = argparse.ArgumentParser(prog="orchestrator.compose.socket_filter", description=__doc__)
    parser.add_argument("--image", required=True, help="the agents' image, the only one that may be run")
    parser.add_argument("--runtime", default="docker", help="'swarm' lets agents run on its nodes, too")
    parser.add_argument("--engine", default=ENGINE, help="Docker's socket")
    parser.add_argument("--listen", default=FILTER_SOCKET, help="the socket for Andy")
    parser.add_argument("--home", default=HOME, help="Andy's home, in its own container")
    arguments = parser.parse_args()
    logging.configure("info")
    container_id = own_id()
    if container_id is None:
        sys.exit("The filter stands in a container of Docker Compose only.")
    asyncio.run(
        serve(
            arguments.engine,
            arguments.listen,
            image=arguments.image,
            has_swarm=arguments.runtime == "swarm",
            own_id=container_id,
            home=arguments.home,
        )
    )


async def serve(
    engine_path: str, listen_path: str, *, image: str, has_swarm: bool, own_id: str, home: str
) -> None:
    """Serve the filter's socket at `listen_path` until SIGTERM or SIGINT.

    Allowed requests are passed on to Docker's socket at `engine_path`. `image` is the tag of the agents'
    image, and `has_swarm` allows agents on the nodes of a swarm. `own_id` is the id of the filter's
    container, and `home` is the path of Andy's home in his own container. A file at `listen_path` is
    replaced. While the filter serves, Andy's container is started again if a port in use prevented its start.
    """
    async with Engine(engine_path) as engine:
        checks = Checks(
            engine,
            survey=partial(survey, engine, own_id=own_id, home=PurePosixPath(home)),
            image=image,
            has_swarm=has_swarm,
        )
        filter_server = FilterServer(checks, connect=partial(asyncio.open_unix_connection, engine_path))
        await asyncio.to_thread(Path(listen_path).unlink, missing_ok=True)
        # With this mask, only the socket's owner and group may connect to it. It is set before the socket
        # exists: a chmod after it would leave a moment in which everybody may connect.
        earlier_mask = os.umask(0o117)
        server = await asyncio.start_unix_server(filter_server.handle, listen_path)
        os.umask(earlier_mask)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        retrying = asyncio.create_task(retry_starts(engine, own_id=own_id), name="filter-retry")
        await stop.wait()
        retrying.cancel()
        server.close()
        await filter_server.close()
        with suppress(FileNotFoundError):
            await asyncio.to_thread(Path(listen_path).unlink)


if __name__ == "__main__":
    main()
