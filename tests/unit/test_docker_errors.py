"""What a Docker engine answers, as the errors of the host that say what is to be done."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from docker.errors import APIError, DockerException
from requests import ConnectionError as NoConnection
from requests import Response
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from orchestrator.containers.docker.client import translated
from orchestrator.containers.image import build
from orchestrator.domain.errors import ContainerError, EngineGone


def answer(status: int, words: str) -> APIError:
    response = Response()
    response.status_code = status
    return APIError("refused", response, words)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        # A manager that has just started again knows for a moment of no swarm.
        (answer(503, "This node is not a swarm manager."), EngineGone),
        # Compose's filter of Docker's socket answers so while the engine itself is away.
        (answer(502, "The engine does not answer: ConnectError"), EngineGone),
        (answer(504, "Gateway Timeout"), EngineGone),
        (answer(500, "no space left on device"), ContainerError),
        (answer(409, "the name is taken"), ContainerError),
        (NoConnection("refused"), EngineGone),
        (DockerException("no engine"), EngineGone),
        # Streams are read below `requests`: an engine that ends in the middle of one, or is silent.
        (ProtocolError("Connection broken"), EngineGone),
        (ReadTimeoutError(None, "/build", "Read timed out."), EngineGone),  # type: ignore[arg-type]
    ],
)
def test_what_an_engine_says_is_an_outage_only_where_waiting_helps(said, kind):
    with pytest.raises(ContainerError) as told, translated():
        raise said
    assert type(told.value) is kind


def test_an_engine_that_ends_during_a_build_is_gone(tmp_path, monkeypatch):
    def events(**_):
        yield {"stream": "Step 1/9"}
        raise ProtocolError("Connection broken: IncompleteRead(0 bytes read)")

    monkeypatch.setattr(build, "build_context", lambda *_: None)
    monkeypatch.setattr(build, "inspect", lambda *_: None)
    monkeypatch.setattr(build, "provide_base", lambda *_: "base")
    client, sources = Mock(build=events), Mock(hash=lambda: "a")
    with pytest.raises(EngineGone):
        build.build(client, layers=(), sources=sources, authorities=tmp_path, say=lambda _: None)
