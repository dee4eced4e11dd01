"""Record the requests with which the host's code creates an agent's service on a swarm."""

from __future__ import annotations

import copy
import json
from typing import Any

import docker
import requests

from orchestrator.containers.swarm.services import SwarmServices
from orchestrator.domain.protocols import ContainerSpec
from orchestrator.domain.values import Folder, RunId

INSTALL, NETWORK_ID, SECRET_ID, NODE_ID = "0123456789ab", "n" * 25, "s" * 25, "k" * 25
IMAGE_ID = "sha256:" + "1" * 64
SPEC = ContainerSpec(run_id=RunId("r1"), folder=Folder("family"), mounts=())
SERVICES = SwarmServices(install=INSTALL, image=IMAGE_ID, gate_id="a" * 64)


class _Recorder(docker.APIClient):
    """Sends nothing; answers as an engine without networks, that makes whatever it is asked for."""

    def __init__(self) -> None:
        super().__init__(base_url="unix:///nowhere", version="1.41")
        self.sent: dict[str, dict[str, Any]] = {}

    def _get(self, url: str, **_: object) -> requests.Response:
        return _answer([] if url.endswith("/networks") else {"Containers": {}})

    def _post(self, url: str, *, data: str, **_: object) -> requests.Response:
        self.sent[url.partition("v1.41")[2]] = json.loads(data)
        return _answer({"Id": NETWORK_ID, "ID": SECRET_ID})


def _answer(document: object) -> requests.Response:
    made = requests.Response()
    made.status_code, made._content = 200, json.dumps(document).encode()
    return made


def start(client: docker.APIClient, *, keeps_files: bool = True) -> str:
    """Have a run's service made; return its id."""
    return SERVICES.create(
        client, SPEC, secret={"token": "t"}, token_hash="0" * 64, node_id=NODE_ID, keeps_files=keeps_files
    )


def sent_for_a_run(*, keeps_files: bool = True) -> dict[str, dict[str, Any]]:
    """The bodies of all requests that make a run, by their path."""
    recorder = _Recorder()
    try:
        start(recorder, keeps_files=keeps_files)
    finally:
        recorder.close()
    return recorder.sent


def service_body(**changes: Any) -> dict[str, Any]:
    """The body that makes the service, with what is named changed: `TaskTemplate__ContainerSpec__User=…`.

    A number is the place in a list.
    """
    body = copy.deepcopy(sent_for_a_run()["/services/create"])
    for name, value in changes.items():
        *outer, last = (int(part) if part.isdecimal() else part for part in name.split("__"))
        inner: Any = body
        for part in outer:
            inner = inner[part]
        inner[last] = value
    return body
