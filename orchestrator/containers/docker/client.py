"""Call the Docker engine with one client per thread, off the event loop, and translate its errors."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from orchestrator.base.import_blocker import without
from orchestrator.domain.errors import ContainerError, EngineGone, ImageMissing

if TYPE_CHECKING:
    from docker import APIClient

T = TypeVar("T")

DEFAULT_ENGINE = "unix:///var/run/docker.sock"
CALL_SECONDS = 60
"""Seconds that the engine may take to answer a call."""
CALL_THREADS = 8
NOT_READY = frozenset({502, 503, 504})
"""HTTP statuses for a request that may succeed later.

A manager of a swarm that has just restarted answers with 503, and Compose's filter of Docker's socket with
502 while the engine does not answer.
"""
ALREADY_SO = frozenset({304, 404, 409})
"""HTTP statuses for a request that is already fulfilled: not modified, not found, and conflict."""


def ping(*, seconds: float) -> None:
    """Check that a program accepts connections at the Docker engine's Unix socket.

    Blocks, for `seconds` at most. This is done before docker-py is imported, because that import is slow. An
    engine whose address is no Unix socket (`DOCKER_HOST`) is not checked.

    Raises:
        EngineGone: nothing listens at the socket, or the connection is not accepted in time.
    """
    scheme, _, path = os.environ.get("DOCKER_HOST", DEFAULT_ENGINE).partition("://")
    if scheme != "unix":
        return
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(path)
        except OSError as error:
            raise EngineGone from error


def load_library() -> None:
    """Import docker-py, but keep it from importing the libraries that detect text encodings.

    Those libraries take 3 MiB and are not needed, because the engine names its encoding.
    """
    with warnings.catch_warnings(), without("charset_normalizer", "chardet"):
        warnings.simplefilter("ignore")  # docker-py would warn on stderr that those libraries are missing
        import docker  # noqa: F401


def connect(*, version: str = "auto", seconds: float = CALL_SECONDS) -> APIClient:
    """Create a client for the engine that the environment names (`DOCKER_HOST`), else the local socket.

    `seconds` is the time limit of each later call. The engine is asked for its API version unless `version`
    is passed. Blocks; raises docker-py's errors.
    """
    load_library()
    import docker
    from docker.utils import kwargs_from_env

    return docker.APIClient(**kwargs_from_env(), version=version, timeout=seconds)  # type: ignore[arg-type]


class ContainerNotFound(ContainerError):
    """The engine has no such container."""


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of docker-py and its transport that leave the `with` block into errors of this project.

    Raises:
        EngineGone: the engine does not answer, or is not ready.
        ImageMissing: the image does not exist.
        ContainerNotFound: a container, network or other object does not exist.
        ContainerError: the engine refused the request.
    """
    load_library()
    import docker.errors
    import requests
    import urllib3.exceptions

    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise ImageMissing from error
    except docker.errors.NotFound as error:
        raise ContainerNotFound(f"Docker has none such: {error.explanation or error}") from error
    except docker.errors.APIError as error:
        if error.status_code in NOT_READY:
            raise EngineGone(f"Docker is not ready: {error.explanation or error}") from error
        raise ContainerError(f"Docker refuses: {error.explanation or error}") from error
    except (
        docker.errors.DockerException,
        requests.RequestException,
        urllib3.exceptions.HTTPError,  # docker-py reads streams, such as that of a build, by urllib3 itself
        OSError,
    ) as error:
        raise EngineGone from error


@contextmanager
def already_so() -> Iterator[None]:
    """Suppress errors of the `with` block by which the engine says that nothing is left to do.

    The object is gone, or already in the requested state. Other errors are raised.
    """
    import docker.errors

    try:
        yield
    except docker.errors.APIError as error:
        if error.status_code not in ALREADY_SO:
            raise


class EngineCalls:
    """Short blocking calls to the engine, which run in a pool of threads."""

    def __init__(self) -> None:
        """Prepare the pool of threads. Each thread gets a client of its own at its first call."""
        self._pool = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix="docker")
        self._thread_local = threading.local()
        self._clients: list[APIClient] = []
        self._version = "auto"
        """The version of the engine's API; `auto` until the first client has asked for it."""

    async def call(self, work: Callable[[APIClient], T]) -> T:
        """Run `work` in a pool thread, with the thread's own client of the engine, and return its result.

        If this call is cancelled, `work` still continues in its thread.

        Raises:
            EngineGone: the engine does not answer.
            ImageMissing: the image does not exist.
            ContainerError: the engine refused, or (`ContainerNotFound`) has no such object.
        """
        return await self.submit(work)

    def submit(self, work: Callable[[APIClient], T]) -> asyncio.Future[T]:
        """Start `work` in a pool thread, with the thread's own client, and return the future of its result.

        Use this instead of `call` where the result is needed even if the caller is cancelled.
        """
        return asyncio.get_running_loop().run_in_executor(self._pool, self._run, work)

    def connect(self) -> APIClient:
        """Create a client for one stream, such as a container's output. The caller closes it. Blocks."""
        client = connect(version=self._version)
        self._version = client.api_version  # so that later clients need not ask the engine for it
        return client

    async def close(self) -> None:
        """Cancel the calls that no thread has begun, wait for the others, then close the connections."""
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
        for client in self._clients:
            client.close()

    def _run(self, work: Callable[[APIClient], T]) -> T:
        """Call `work` with the client of the present thread.

        Errors of docker-py become errors of this project.
        """
        with translated():
            client = self._client()
            try:
                return work(client)
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                # The answer had an unexpected form: another program answers at the engine's address, or an
                # engine of another kind.
                raise ContainerError(
                    f"Docker answered with what no engine says ({type(error).__name__}: {str(error)[:100]}): "
                    "look at what 'docker version' says."
                ) from error

    def _client(self) -> APIClient:
        """Return the client of the present thread, created at the thread's first call."""
        client: APIClient | None = getattr(self._thread_local, "client", None)
        if client is None:
            client = self._thread_local.client = self.connect()
            self._clients.append(client)
        return client
