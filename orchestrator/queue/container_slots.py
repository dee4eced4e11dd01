"""Count the slots of containers: no more are live at a time than `MAX_CONCURRENT_CONTAINERS`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.domain.values import LiveRun, RunState, Turn

_WITHOUT_WORK = (RunState.READY, RunState.IDLE)
"""The states of runs that work on nothing, in the order in which such runs are closed."""


@dataclass(slots=True, kw_only=True)
class ContainerSlots:
    """The slots that remain while the ready turns take theirs, the most urgent first."""

    free: int
    coming: int
    """Slots of closing runs that no turn has claimed yet.

    Negative when more runs live than the cap allows, or when more turns wait for a slot than runs are
    closing.
    """
    overlap: int
    """Closing runs that may still live beyond the cap, so that others can start while they end."""
    spare: list[LiveRun]
    """Runs without work that no turn has claimed yet, in the order in which they would be closed."""

    @classmethod
    def before_any_turn(
        cls, runs: Sequence[LiveRun], ready: Sequence[Turn], *, cap: int, overlap: int
    ) -> ContainerSlots:
        """Return the slots before any turn has taken one.

        Args:
            runs: the live containers.
            ready: the turns that may start, the most urgent first.
            cap: how many containers may be live at the same time.
            overlap: how many closing containers may be live beyond the cap.
        """
        closing = sum(run.state is RunState.CLOSING for run in runs)
        without_slot = min(closing, overlap)  # the closing runs that hold no slot
        # Negative after the cap was lowered: the runs beyond it have to end before a slot becomes free.
        free = cap - len(runs) + without_slot
        # Each closing run that holds a slot frees one, but for the first ones while `free` is negative.
        coming = closing - without_slot + min(free, 0)
        return cls(
            free=free,
            coming=coming,
            overlap=overlap - without_slot,
            spare=_spare(runs, ready),
        )

    def make_room(self) -> list[LiveRun]:
        """Take slots of containers without work until one is free, or will be once a closing one has ended.

        Return those containers, which the caller closes.
        """
        to_close: list[LiveRun] = []
        while self.free < 1 and self.coming < 1 and self.spare:
            to_close += self.release(self.spare[:1])
        return to_close

    def take(self) -> bool:
        """Take a free slot for a turn and return True.

        If none is free, reserve the next one that becomes free, and return False. `coming`, the number of
        slots that will become free and are not reserved, may become negative.
        """
        if self.free < 1:
            self.coming -= 1
            return False
        self.free -= 1
        return True

    def reserve_for_later(self) -> list[LiveRun]:
        """Reserve a slot for a turn that cannot start yet: one that is `coming`, or else a free one.

        Without either, `coming` becomes negative: the turn waits for a slot that no closing run will free.
        Return the containers without work that the caller closes for it.
        """
        to_close = self.make_room()
        if self.coming < 1 and self.free > 0:
            self.free -= 1
        else:
            self.coming -= 1
        return to_close

    def release(self, runs: Sequence[LiveRun]) -> list[LiveRun]:
        """Let other turns have the slots of those of `runs` that have no work and are not claimed.

        Each slot counts as free at once if one more closing run may live beyond the cap (`overlap`),
        otherwise as `coming`: it becomes free when the run has ended. Return these runs, which the caller
        closes.
        """
        to_close = [run for run in self.spare if run in runs]
        for run in to_close:
            self.spare.remove(run)
            # A turn that waits for this slot then starts at once, and not only when the container is gone.
            if self.overlap > 0:
                self.overlap -= 1
                self.free += 1
            else:
                self.coming += 1
        return to_close


def own_run_of(turn: Turn, runs: Sequence[LiveRun]) -> LiveRun | None:
    """Return the live container that can take a turn; None if there is none."""
    return next((run for run in runs if run.takes(turn)), None)


def _spare(runs: Sequence[LiveRun], ready: Sequence[Turn]) -> list[LiveRun]:
    """Return the containers without work, in the order in which to close them.

    First come those that none of the turns `ready` can use: those that were started ahead (state READY), then
    the idle ones, the longest idle first. Last come those that a turn can use, beginning with that of the
    least urgent turn.
    """
    wanted = [own_run for turn in reversed(ready) if (own_run := own_run_of(turn, runs)) is not None]
    unwanted = [run for run in runs if run.state in _WITHOUT_WORK and run not in wanted]
    return sorted(unwanted, key=lambda run: (_WITHOUT_WORK.index(run.state), run.idle_since_ms)) + wanted
