"""What tokens cost, as an estimate: the owner's prices, else list prices of the first party, without tax.

A cost is written down with the price of its day and is not corrected when a price changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.proxies.model.usage_parser import ParsedUsage

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


def per_million(
    *,
    input: float,  # noqa: A002 - the service's own word
    output: float,
    cache_read: float | None = None,
    cache_write: float | None = None,
    cache_write_hour: float | None = None,
) -> Price:
    """Make a price of dollars a million tokens; what is not told of the cache is as the list has it."""
    return Price(
        input=_nano(input),
        output=_nano(output),
        cache_read=_nano(input * _CACHE_READ if cache_read is None else cache_read),
        cache_write=_nano(input * _CACHE_WRITE if cache_write is None else cache_write),
        cache_write_hour=_nano(input * _CACHE_WRITE_HOUR if cache_write_hour is None else cache_write_hour),
    )


class Prices:
    """The prices that count: the owner's by name, which go first, and the list's."""

    def __init__(self, own: Mapping[str, Price] | None = None) -> None:
        """`own` has prices by the name of a model, or by how names begin; the longest that fits counts."""
        longest_first = sorted((own or {}).items(), key=lambda pair: len(pair[0]), reverse=True)
        self._own = dict(longest_first)

    def of(self, model: str | None) -> Price | None:
        """Return the price of a model, or None when it is not known.

        What gateways put before a name (`us.anthropic.`) does not matter.
        """
        told = model or ""
        name = told[max(0, told.find("claude-")) :]
        own = (price for prefix, price in self._own.items() if _fits(told, prefix) or _fits(name, prefix))
        listed = (per_million(input=pair[0], output=pair[1]) for pair in _listed(name))
        return next(own, None) or next(listed, None)

    def cost_nano_usd(self, seen: ParsedUsage) -> int | None:
        """An estimate in billionths of a dollar; None when the model has no known price."""
        price = self.of(seen.model)
        if price is None:
            return None
        hourly = min(seen.cache_write_hour_tokens, seen.cache_write_tokens)
        return (
            seen.input_tokens * price.input
            + seen.output_tokens * price.output
            + seen.cache_read_tokens * price.cache_read
            + (seen.cache_write_tokens - hourly) * price.cache_write
            + hourly * price.cache_write_hour
        )


def _listed(name: str) -> list[tuple[float, float]]:
    return [pair for prefix, pair in _USD_PER_MILLION.items() if _fits(name, prefix)]


def _fits(name: str, prefix: str) -> bool:
    """`claude-opus-4-12` is not `claude-opus-4-1`."""
    return name.startswith(prefix) and not name[len(prefix) : len(prefix) + 1].isdigit()


def _nano(usd_per_million: float) -> int:
    return round(usd_per_million * 1000)
