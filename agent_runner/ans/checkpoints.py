"""Have the agent look back every few turns."""

from __future__ import annotations

from agent_runner.ans.event import Happening

EVERY_TURNS = 10


class CheckpointPrompts:
    """Counts turns, and says `task.checkpoint` with every tenth, or when asked to.

    `turn` is how many the conversation had before: containers come and go more often than every ten.
    """

    def __init__(self, *, turn: int = 0, every: int = EVERY_TURNS) -> None:
        self._every = every
        self._turn = turn

    @property
    def turn(self) -> int:
        return self._turn

    def begin_turn(self) -> Happening | None:
        self._turn += 1
        if self._turn % self._every:
            return None
        return self.reached(f"{self._every} turns since the last look back: is the plan still right?")

    def reached(self, message: str) -> Happening:
        """Return the checkpoint that somebody asks for now."""
        return Happening(
            type="task.checkpoint", severity="info", payload={"message": message, "turn": self._turn}
        )
