"""`andy nodes`: the machines that agents run on, where they run on a swarm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from orchestrator.cli.options import HomeOption, JsonOption, show


def nodes(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the machines of the swarm, what runs there, and what is wrong.

    Example: `andy nodes`
    """
    from orchestrator.cli.terminal import home_of, settings_of
    from orchestrator.containers.swarm.nodes import look_at_nodes

    own = home_of(home)
    slots = settings_of(own).max_containers_per_node
    found = look_at_nodes(own.data, install=own.install_id(), slots=slots)
    show([asdict(node) for node in found], _lines, as_json=as_json)


def _lines(found: list[dict[str, Any]]) -> list[str]:
    return [line for node in found for line in _node_lines(node)]


def _node_lines(node: dict[str, Any]) -> Iterator[str]:
    runs = ", ".join(node["groups"]) or "nothing"
    slots = f" · {len(node['groups'])} of {node['slots']} slots" if node["slots"] else ""
    labels = f" · {', '.join(node['labels'])}" if node["labels"] else ""
    yield f"{node['name']}  {node['address']}  {node['state']}{labels}"
    yield f"  runs {runs}{slots}"
    if node["problem"]:
        yield f"  ⚠️  {node['problem']}"
