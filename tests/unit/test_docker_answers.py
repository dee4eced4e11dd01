"""Answers of any shape in the place of an engine's: each call ends with a value or an error of the host's.

The shapes are those of the Docker Engine's API (1.41 and later), as far as Andy reads them.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.containers.docker import network, runtime
from orchestrator.containers.docker.client import EngineCalls
from orchestrator.containers.docker.container import DockerContainer, _was_oom_killed
from orchestrator.containers.docker.group_networks import GroupNetworks
from orchestrator.domain.errors import AndyError, EngineGone
from orchestrator.domain.values import Folder
from tests.support.json_schemas import JUNK, any_of, examples, valid

INSTALL = "in"
OURS = {"const": {"andy.install": INSTALL, "andy.run": "R", "andy.group": "family"}}
TEXT = {"type": "string"}
CONTAINER = {
    "properties": {
        "Id": TEXT,
        "Labels": {"anyOf": [OURS, {"type": "object", "additionalProperties": TEXT}]},
        "State": {"enum": ["created", "running", "paused", "removing", "exited", "dead", "sleeping"]},
    },
    "required": ["Id", "Labels", "State"],
}
NETWORK = {
    "properties": {
        "Id": TEXT,
        "Name": {"enum": [f"andy-{INSTALL}", f"andy-{INSTALL}.family", "bridge"]},
        "Created": TEXT,
        "Internal": {"type": "boolean"},
        "Labels": {"anyOf": [OURS, {"type": "null"}]},
        "Options": {"anyOf": [{"type": "object", "additionalProperties": TEXT}, {"type": "null"}]},
        "Containers": {"anyOf": [{"type": "object", "additionalProperties": {}}, {"type": "null"}]},
        "IPAM": {
            "properties": {
                "Config": {
                    "anyOf": [
                        {"type": "array", "items": {"properties": {"Gateway": TEXT}, "type": "object"}},
                        {"type": "null"},
                    ]
                }
            },
            "required": ["Config"],
        },
    },
    "required": ["Id", "Name", "Created", "Internal", "Labels", "Options", "Containers", "IPAM"],
}
INSPECTED = {
    "properties": {
        "State": {
            "properties": {"Status": TEXT, "OOMKilled": {"type": "boolean"}},
            "required": ["Status", "OOMKilled"],
        }
    },
    "required": ["State"],
}
ERROR = {"properties": {"message": TEXT}, "required": ["message"]}
SHAPES = (
    {"type": "array", "items": CONTAINER},
    {"type": "array", "items": NETWORK},
    NETWORK,
    INSPECTED,
    ERROR,
)
BODY = st.one_of(
    (st.one_of([any_of(valid(one, {})) for one in SHAPES]) | JUNK).map(lambda one: json.dumps(one).encode()),
    st.sampled_from([b"", b"<html>502</html>", b'{"Id": ', '{"Id": "é"}'.encode("utf-16"), b"OK"]),
)
ANSWER = st.tuples(st.sampled_from([200, 200, 200, 201, 204, 302, 400, 404, 409, 500, 503]), BODY)
CALLS = (
    partial(runtime.remove_runs, install=INSTALL),
    partial(network.find_network, install=INSTALL),
    partial(network.open_network, install=INSTALL),
    partial(_was_oom_killed, ref="x"),
    lambda client: runtime._create(client, "x", {"image": "i"}),
    lambda client: GroupNetworks(install=INSTALL, own_id="me").join(client, Folder("family")),
    lambda client: GroupNetworks(install=INSTALL, own_id="me").tidy(client),
)


class Engine(BaseHTTPRequestHandler):
    """Answers whatever is asked with `answer`."""

    protocol_version = "HTTP/1.1"
    answer: tuple[int, bytes] = (200, b"{}")

    def _say(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        status, body = Engine.answer
        if self.path.endswith("/version"):
            status, body = 200, b'{"ApiVersion": "1.47", "MinAPIVersion": "1.24"}'
        self.send_response(status)
        if status == 302:
            self.send_header("location", "/elsewhere")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(0 if status == 204 else len(body)))
        self.end_headers()
        self.wfile.write(b"" if status == 204 else body)

    do_GET = do_POST = do_DELETE = _say  # noqa: N815 - as the library calls them

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="engine")
        thread.start()
        yield f"tcp://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(found=st.lists(st.tuples(st.sampled_from(CALLS), ANSWER), min_size=1, max_size=5))
def test_whatever_answers_in_place_of_the_engine_ends_a_call_with_an_error_of_the_host(engine, found):
    async def all_of() -> None:
        calls = EngineCalls()
        try:
            for call, answer in found:
                Engine.answer = answer
                with suppress(AndyError):
                    await calls.call(call)
            Engine.answer = (200, b"[]")
            assert await calls.call(partial(network.find_network, install=INSTALL)) is None
        finally:
            await calls.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine)
        asyncio.run(all_of())


@pytest.mark.parametrize(
    "answer",
    [
        b'{"Error": {"Message": "no"}}',
        b"<html>",
        b"null",
        b'{"StatusCode": 1e400}',
        b'{"StatusCode": "x"}',
        b"[" * 9_000,
    ],
    ids=range(6),
)
async def test_an_end_that_the_engine_does_not_say_is_that_of_an_engine_that_is_gone(monkeypatch, answer):
    container: Any = DockerContainer.__new__(DockerContainer)
    container._exit = None

    async def pumped(*_: object) -> AsyncIterator[bytes]:
        yield answer

    monkeypatch.setattr(DockerContainer, "_pump_chunks", pumped)
    with pytest.raises(EngineGone):
        await container.wait()
