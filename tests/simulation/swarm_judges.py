"""Judge what is promised of agents on several machines, besides what is promised everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent_runner.carrier.carrier import BROKEN_CODE
from tests.simulation.swarm import SwarmedEngine

if TYPE_CHECKING:
    from tests.simulation.world import World


def swarm(world: World) -> Iterator[str]:
    """Yield what breaks a promise that is made of a swarm."""
    engine = world.engine
    if isinstance(engine, SwarmedEngine):
        yield from _left_on_the_swarm(engine)
        yield from _two_at_once(world, engine)
        yield from _ended_by_themselves(engine)
        yield from _files(world)
        yield from _placement(world, engine)


def _left_on_the_swarm(engine: SwarmedEngine) -> Iterator[str]:
    for service in engine.services.values():
        yield f"The service {service.name} is left over."
    for secret in engine.secrets.values():
        yield f"The secret {secret['Spec']['Name']} is left over."


def _two_at_once(world: World, engine: SwarmedEngine) -> Iterator[str]:
    """No turn counts of two containers, however many have begun it."""
    last = {row["id"]: row["last_frame"] for row in world.rows("SELECT id, last_frame FROM runs")}
    counted: dict[int, list[str]] = {}
    for end in engine.turn_ends:
        if end.is_good and end.frame <= last.get(end.run_id, 0):
            counted.setdefault(end.turn, []).append(end.place)
    for turn, places in counted.items():
        if len(places) > 1:
            yield f"Turn {turn} counts of {len(places)} containers: {', '.join(places)}"


def _ended_by_themselves(engine: SwarmedEngine) -> Iterator[str]:
    """A carrier ends by itself only where the host has given its run up, or was away for an hour."""
    for container, code, at_s in engine.own_ends:
        if code == BROKEN_CODE:
            yield f"{container.process.name} broke: {container.warning}"
        elif "away" in container.warning:  # no world keeps the host away for so long
            yield f"{container.process.name} gave up by itself at {at_s:.0f} s: {container.warning}"


def _placement(world: World, engine: SwarmedEngine) -> Iterator[str]:
    """Report containers on a node with too many, where no node is amiss."""
    if not any(fault.kind in ("node", "cut off", "slow node") for fault in world.plan.faults):
        for choice in engine.crowded_choices:
            yield f"A node was chosen that had too many containers: {choice}"


def _files(world: World) -> Iterator[str]:
    """Files of a turn come with the turn: what was answered to be on a list is in the host's own folder."""
    from tests.simulation.judges import _turn_of

    groups = {jid: group for group in world.plan.groups for jid in group.chats}
    for written in world.people.all:
        said = written.said
        if said.kind != "list" or _turn_of(world, written)[0] != "answered":
            continue
        folder = world.home.groups / groups[said.jid].folder
        words = "\n".join(
            path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.rglob("*.md"))
        )
        if not re.search(rf"(?<!\w){said.token}(?!\w)", words):
            yield f"Answered, and its file did not come: {said}"
