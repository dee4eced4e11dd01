"""What tokens cost, as an estimate: list prices of the first party, without batch, tier and tax.

A cost is written down with the price of its day and is not corrected when a price changes here.
"""

from __future__ import annotations

from dataclasses import dataclass

AS_OF = "2026-03"

_USD_PER_MILLION: dict[str, tuple[float, float]] = {
    "claude-opus-4-6": (5, 25),
    "claude-opus-4-5": (5, 25),
    "claude-opus-4-1": (15, 75),
    "claude-opus-4-0": (15, 75),
    "claude-opus-4-20250514": (15, 75),
    "claude-sonnet-4-6": (3, 15),
    "claude-sonnet-4-5": (3, 15),
    "claude-sonnet-4-0": (3, 15),
    "claude-sonnet-4-20250514": (3, 15),
    "claude-3-7-sonnet": (3, 15),
    "claude-haiku-4-5": (1, 5),
    "claude-3-5-haiku": (0.8, 4),
}
"""Prefix of a model's name → input, output. A model that is newer than this has no price: better than a
wrong one."""
_CACHE_READ, _CACHE_WRITE, _CACHE_WRITE_HOUR = 0.1, 1.25, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Billionths of a dollar a token."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cache_write_hour: int


def price_of(model: str | None) -> Price | None:
    """Return the price of a model, or None when it is not known.

    What gateways put before a name (`us.anthropic.`) does not matter.
    """
    name = (model or "")[max(0, (model or "").find("claude-")) :]
    found = next((pair for prefix, pair in _USD_PER_MILLION.items() if _fits(name, prefix)), None)
    if found is None:
        return None
    read, written = found
    return Price(
        input=_nano(read),
        output=_nano(written),
        cache_read=_nano(read * _CACHE_READ),
        cache_write=_nano(read * _CACHE_WRITE),
        cache_write_hour=_nano(read * _CACHE_WRITE_HOUR),
    )


def _fits(name: str, prefix: str) -> bool:
    """`claude-opus-4-12` is not `claude-opus-4-1`."""
    return name.startswith(prefix) and not name[len(prefix) : len(prefix) + 1].isdigit()


def _nano(usd_per_million: float) -> int:
    return round(usd_per_million * 1000)
