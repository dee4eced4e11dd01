"""`andy nodes`: the machines that agents run on, where they run on a swarm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, TypedDict

from cyclopts import App, Parameter

from orchestrator.cli.options import HomeOption, JsonOption, show

if TYPE_CHECKING:
    from orchestrator.containers.swarm.nodes import NodeView

THROUGH = "python:3-alpine"
"""The image in which the copying task runs on a node that has no earlier agent image."""

nodes_app = App(name="nodes")


class CopiedImageView(TypedDict):
    """The result of copying the agents' image to one node, as `--json` prints it."""

    name: str
    """The name of the node."""
    problem: str | None
    """The reason why the node does not have the image; None if it has it."""


@nodes_app.default
def nodes(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the machines of the swarm, what runs there, and what is wrong.

    Example: `andy nodes`
    """
    from orchestrator.cli.terminal import home_of, settings_to_show
    from orchestrator.containers.swarm.nodes import inspect_nodes
    from orchestrator.store.database import refuse_missing

    own_home = home_of(home)
    refuse_missing(own_home.database)
    slots = settings_to_show(own_home).max_containers_per_node
    report = inspect_nodes(own_home.data, install=own_home.install_id(), slots=slots)
    show(report, _report_lines, as_json=as_json)


@nodes_app.command(name="load-image")
def load_image(
    *,
    through: Annotated[
        str,
        Parameter(help="An image with Python 3 that nodes can pull, for those that have none of Andy's."),
    ] = THROUGH,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Copy the agents' image to the nodes that lack it, without a registry of your own.

    A task on each node fetches and loads it. The task runs in an earlier agent image of the node, else in one
    that it pulls. A node with neither is listed: use 'docker save IMAGE | ssh NODE docker load' for it.

    Example: `andy nodes load-image`
    """
    from orchestrator.cli.terminal import home_of, say_aside, settings_of
    from orchestrator.containers.docker import client as docker_client
    from orchestrator.containers.swarm.image_copies import CALL_SECONDS, copy_image
    from orchestrator.domain.errors import ContainerError

    own_home = home_of(home)
    image = settings_of(own_home).andy_image
    with docker_client.translated(), closing(docker_client.connect(seconds=CALL_SECONDS)) as client:
        outcome = copy_image(
            client, image, install=own_home.install_id(), data=own_home.data, through=through, say=say_aside
        )
    rows = [CopiedImageView(name=name, problem=problem) for name, problem in outcome.items()]
    show(rows, _copied_lines, as_json=as_json)
    if any(outcome.values()):
        raise ContainerError("Not every node has the image.")


def _copied_lines(report: list[CopiedImageView]) -> list[str]:
    """Return a line for each node of the swarm: that it has the agents' image now, or why not."""
    return [
        f"{node['name']}  {'⚠️  ' + node['problem'] if node['problem'] else 'has the image'}"
        for node in report
    ]


def _report_lines(report: list[NodeView]) -> list[str]:
    """Return the lines about all nodes of the swarm."""
    return [line for node in report for line in _node_lines(node)]


def _node_lines(node: NodeView) -> Iterator[str]:
    """Yield the lines about a node of the swarm: its address, the groups that run there, and its problem."""
    runs = ", ".join(node["groups"]) or "nothing"
    slots = f" · {len(node['groups'])} of {node['slots']} slots" if node["slots"] else ""
    labels = f" · {', '.join(node['labels'])}" if node["labels"] else ""
    yield f"{node['name']}  {node['address']}  {node['state']}{labels}"
    yield f"  runs {runs}{slots}"
    if node["problem"]:
        yield f"  ⚠️  {node['problem']}"
