"""Saves a context again and again in children that are killed at random moments, and looks at what is left.

    python killing_context.py CONTEXTS SAVES

Prints how many saves were told and how many children were killed. A child is a fork: it is at work at once.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
from pathlib import Path

from saving_context import main as save

from orchestrator.context.models import Context

MOST_SECONDS = 0.1


def begin(contexts: Path, first: int) -> tuple[int, int]:
    """A child that saves from turn `first` on, and where it tells each save."""
    hears, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(tells, 1)
        save(contexts, first, 10_000)
        os._exit(0)
    os.close(tells)
    return pid, hears


def told_until(hears: int, pid: int, chance: random.Random) -> list[str]:
    """What a child told until it was killed: after some saves, somewhere in the next."""
    found = b""
    least = chance.randrange(1, 30)
    while found.count(b"\n") < least:
        found += os.read(hears, 65_536)
    select.select([], [], [], chance.random() * MOST_SECONDS)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while more := os.read(hears, 65_536):
        found += more
    os.close(hears)
    return [line for line in found.decode().split("\n")[:-1] if line]


def check(brain: Path, told: list[str]) -> None:
    """Both files parse, and nothing is missing that was told."""
    context = Context.model_validate(json.loads((brain / "context.json").read_text()))
    lost = [one for one in told if one not in context.conversation.seen]
    assert not lost, f"lost: {lost}"
    if (brain / "workflow.json").exists():
        json.loads((brain / "workflow.json").read_text())


def main(contexts: Path, saves: int) -> None:
    chance = random.Random(8)
    told: list[str] = []
    kills = 0
    while len(told) < saves:
        newest = int(told[-1][1:-2]) if told else 0
        pid, hears = begin(contexts, newest + 1)
        told += told_until(hears, pid, chance)
        kills += 1
        check(contexts / "family" / ".ai-brain", told)
    print(len(told), kills, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
