"""A process that registers messages as fast as it can, and tells each when it is kept.

python saving_context.py CONTEXTS FIRST_TURN TURNS
"""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.context.context_manager import ContextManager
from orchestrator.context.dialogue import NewMessage
from orchestrator.context.tokens import EstimatingCounter

NOW = 1_795_339_800_000


def main(contexts: Path, first: int, turns: int) -> None:
    harness = ContextManager.of(contexts, "family", counter=EstimatingCounter(), lock_seconds=240)
    for turn in range(first, first + turns):
        for who, role in (("u", "user"), ("a", "assistant")):
            message = NewMessage(
                id=f"t{turn}.{who}",
                role=role,  # type: ignore[arg-type]
                content=f"Message {who} of turn {turn}. We decided on it. " * 3,
                at_ms=NOW + turn,
            )
            harness.register_message(message, now_ms=NOW + turn)
            print(f"t{turn}.{who}", flush=True)
        if turn % 10 == 0:
            harness.create_plan(f"Plan {turn}", tasks=["One"], now_ms=NOW + turn)
            harness.update_plan_task("task_001", status="completed", now_ms=NOW + turn)
            harness.snapshot(now_ms=NOW + turn * 1_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
