"""What a Docker engine answers, as the errors of the host that say what is to be done."""

from __future__ import annotations

import pytest
from docker.errors import APIError, DockerException
from requests import ConnectionError as NoConnection
from requests import Response

from orchestrator.containers.docker.client import translated
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
    ],
)
def test_what_an_engine_says_is_an_outage_only_where_waiting_helps(said, kind):
    with pytest.raises(ContainerError) as told, translated():
        raise said
    assert type(told.value) is kind
