"""The pauses between attempts at something that fails again and again. Pure."""

from __future__ import annotations

MAX_DOUBLINGS = 20
"""Most times that a first pause is doubled: after a thousand failures the power would overflow a float."""


def doubled_pause(first: float, longest: float, *, failures: int) -> float:
    """Return the pause after so many failures in a row: `first` after one, twice that after two, and so on.

    It is never above `longest`. All are in the same unit, such as seconds.
    """
    return min(first * 2.0 ** min(failures - 1, MAX_DOUBLINGS), longest)
