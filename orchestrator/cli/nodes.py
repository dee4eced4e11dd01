"""`andy nodes`: the machines that agents run on, where they run on a swarm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Any

from orchestrator.cli.options import HomeOption, JsonOption, show


def nodes(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the machines of the swarm, what runs there, and what is wrong.

    Example: `andy nodes`
    """
    from orchestrator.cli.terminal import home_of
    from orchestrator.containers.docker import client as docker_client
    from orchestrator.containers.swarm import services

    install = home_of(home).install_id()
    with docker_client.translated(), closing(docker_client.connect()) as client:
        services.check_manager(client)
        found = [asdict(node) for node in services.list_nodes(client, install=install)]
    show(found, _lines, as_json=as_json)


def _lines(found: list[dict[str, Any]]) -> list[str]:
    return [line for node in found for line in _node_lines(node)]


def _node_lines(node: dict[str, Any]) -> Iterator[str]:
    runs = ", ".join(node["groups"]) or "nothing"
    labels = f" · {', '.join(node['labels'])}" if node["labels"] else ""
    yield f"{node['name']}  {node['address']}  {node['state']}{labels}"
    yield f"  runs {runs}"
    if node["problem"]:
        yield f"  ⚠️  {node['problem']}"
