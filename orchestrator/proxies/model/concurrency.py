"""How many requests are under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.domain.values import Folder
from orchestrator.proxies.model.refusals import ProxyRefused, busy


class RequestSlots:
    """Counts requests a group and over all."""

    def __init__(self, *, a_group: int, overall: int) -> None:
        self._a_group = a_group
        self._overall = overall
        self._held: Counter[Folder] = Counter()

    @contextmanager
    def hold(self, folder: Folder) -> Iterator[None]:
        """Hold one slot of `folder`. Raises `ProxyRefused` (429) when there is none."""
        if self._held[folder] >= self._a_group:
            raise ProxyRefused(busy(self._a_group))
        if self._held.total() >= self._overall:
            raise ProxyRefused(busy(self._overall))
        self._held[folder] += 1
        try:
            yield
        finally:
            self._held[folder] -= 1
            self._held += Counter()  # forgets groups that hold none
