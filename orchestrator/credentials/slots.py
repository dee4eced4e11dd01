"""How many requests are under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.credentials.refusals import Refused, busy
from orchestrator.models import RunId


class Slots:
    """Counts requests a run and over all."""

    def __init__(self, *, a_run: int, overall: int) -> None:
        self._a_run = a_run
        self._overall = overall
        self._held: Counter[RunId] = Counter()

    @contextmanager
    def hold(self, run_id: RunId) -> Iterator[None]:
        """Hold one slot of `run_id`. Raises `Refused` (429) when there is none."""
        if self._held[run_id] >= self._a_run:
            raise Refused(busy(self._a_run))
        if self._held.total() >= self._overall:
            raise Refused(busy(self._overall))
        self._held[run_id] += 1
        try:
            yield
        finally:
            self._held[run_id] -= 1
            self._held += Counter()  # forgets runs that hold none
