"""The tokens and cost of one model answer, read from a copy of the stream so that nothing delays it.

A cost is an estimate by the owner's prices, else by the first party's list prices, without tax. It is stored
with the price of its day and is not corrected when a price changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.model_services import ModelService
from orchestrator.proxies.model.headers import Header

MAX_LINE_BYTES = 1024 * 1024
"""Bytes of a line of a stream; a longer line is skipped."""
MAX_BODY_BYTES = 8 * 1024 * 1024
"""Bytes of an answer that is no stream; a longer answer is not parsed."""
MAX_TOKENS = 10**12
"""The highest count that is believed: a service may report anything."""
MAX_NANO_USD = 10**15
"""The highest cost of one answer that is believed, in billionths of a dollar: a million dollars."""
MAX_ITERATIONS = 1_000
"""Iterations of an answer whose usage is added up."""
MAX_SEARCHES = 100
"""Web searches that one answer may make; a request may ask for fewer."""
SEARCH_USD = 0.01
"""The list price of one web search, in USD."""
BYTES_A_TOKEN = 4
"""Bytes that a token of text has, about: used for estimates."""
_DELTA_FRAME_BYTES = 110
"""Most bytes of a delta event beside its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedUsage:
    """The usage that an answer reported. If it broke off, `output_tokens` is an estimate."""

    model: str | None
    """The model that the answer names; None if it names none."""
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cache_write_hour_tokens: int
    """The part of `cache_write_tokens` that is cached for an hour."""
    searches: int = 0
    """Web searches that the service made."""
    is_fast: bool = False
    """Whether it was answered in fast mode, which costs more."""
    is_us_only: bool = False
    """Whether the service computed it in the United States alone, which costs more."""
    is_whole: bool
    """Whether the answer came to its end."""


class UsageParser:
    """Parses the usage from the chunks of one answer. It never raises.

    Call `begin` with the answer's head, `feed` with each chunk of its body, and `usage_so_far` at the end.
    """

    def __init__(self) -> None:
        self.reserved_searches = 0
        """Web searches that were reserved for the request, which lets the service make them."""
        self._is_stream = False
        """Whether the answer is a stream of events, not one JSON object."""
        self._is_reading = False
        """Whether the answer may report usage, and was not parsed to its end."""
        self._line = bytearray()
        """The beginning of the present line of a stream; for another answer, of its body."""
        self._is_overlong = False
        """Whether the present line was too long, and is skipped."""
        self._model: str | None = None
        self._usage: dict[str, Any] | None = None
        """The last report of usage, as JSON; later reports of a stream replace single counts."""
        self._is_whole = False
        """Whether the answer has come to its end."""
        self._has_output_count = False
        """Whether the final count of output tokens was reported."""
        self._deltas = 0
        """Events of a stream that bring a piece of output."""
        self._delta_bytes = 0
        """Bytes of the pieces in these events, about."""
        self._searches = 0
        """Web searches that the stream shows to have begun."""

    @property
    def is_whole(self) -> bool:
        """Whether the answer has come to its end."""
        return self._is_whole

    def begin(self, status: int, headers: list[Header]) -> None:
        """Process the head of the answer: only a successful one, in JSON or as a stream, is parsed."""
        kinds = [value.strip().lower() for name, value in headers if name.lower() == b"content-type"]
        self._is_stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
        is_json = any(kind.startswith(b"application/json") for kind in kinds)
        self._is_reading = 200 <= status < 300 and (self._is_stream or is_json)

    def feed(self, chunk: bytes) -> None:
        """Process the next chunk of the body. This is fast: only lines that may contain usage are parsed."""
        if not self._is_reading:
            return
        if not self._is_stream:
            self._append(chunk, MAX_BODY_BYTES)
            return
        # The first piece ends the present line, the last starts another, and those between are whole lines.
        line_end, *lines = chunk.split(b"\n")
        self._append(line_end, MAX_LINE_BYTES)
        if not lines:
            return
        self._end_line()
        line_start = lines.pop()
        self._read_lines(lines)
        self._append(line_start, MAX_LINE_BYTES)

    def usage_so_far(self) -> ParsedUsage | None:
        """Return the usage that the answer has reported, whole or not; None when it reported none.

        An answer that is no stream is parsed by this call, so call it only at the answer's end.
        """
        if self._is_reading and not self._is_stream:
            self._is_reading = False
            self._read_message(_parse_object(b"" if self._is_overlong else self._line))
        if self._usage is None:
            return None
        return ParsedUsage(
            model=self._model,
            input_tokens=self._charged_tokens("input_tokens"),
            # The first is an estimate while the answer is not whole.
            output_tokens=max(self._output_count(), self._charged_tokens("output_tokens")),
            cache_read_tokens=self._charged_tokens("cache_read_input_tokens"),
            cache_write_tokens=self._charged_tokens("cache_creation_input_tokens"),
            # As in `_charged_tokens`: the report may count only the last iteration.
            cache_write_hour_tokens=max(
                _hour_cache_tokens(self._usage), sum(map(_hour_cache_tokens, self._iterations()))
            ),
            searches=self._search_count(),
            is_fast=self._usage.get("speed") == "fast",
            is_us_only=self._usage.get("inference_geo") == "us",
            is_whole=self._is_whole,
        )

    def _charged_tokens(self, name: str) -> int:
        """Return the count `name` of the reported usage as it is charged.

        A service may work in iterations, such as a compaction before the answer, and charges for all. The
        count at the top level of its report is then only the last iteration's, so the larger value counts.
        """
        assert self._usage is not None
        # In an example of the service's documents, the top level reports 23,000 tokens, after a compaction of
        # 180,000 more.
        charged = sum(_count(iteration, name) for iteration in self._iterations())
        # A sum that no database stores would stop the recording of all usage.
        return min(max(_count(self._usage, name), charged), MAX_TOKENS)

    def _iterations(self) -> list[dict[str, Any]]:
        """Return the reported usage of each iteration in which the service worked; empty without a report."""
        assert self._usage is not None
        iterations = self._usage.get("iterations")
        rows = iterations[:MAX_ITERATIONS] if isinstance(iterations, list) else []
        return [row for row in rows if isinstance(row, dict)]

    def _append(self, piece: bytes, limit: int) -> None:
        """Add a piece to the present line, or skip the whole line if it grows above `limit` bytes."""
        if len(self._line) + len(piece) > limit:
            self._is_overlong = True
            self._line.clear()
        elif not self._is_overlong:
            self._line += piece

    def _end_line(self) -> None:
        """Process the present line, which is complete, and begin the next."""
        line = bytes(self._line)
        self._line.clear()
        if not self._is_overlong:
            self._read_lines([line])
        self._is_overlong = False

    def _read_lines(self, lines: Sequence[bytes]) -> None:
        """Process whole lines of a stream: parse those with usage, and count deltas and web searches.

        A delta is an event that brings a piece of the output.
        """
        for line in lines:
            if not line.startswith(b"data:") or len(line) > MAX_LINE_BYTES:
                continue
            # The type of an event is at the beginning of its data, and 64 bytes are quickly searched.
            if line.find(b'"content_block_delta"', 0, 64) >= 0:
                # Nearly all lines are deltas, so they are counted here, without a call for each.
                self._deltas += 1
                if len(line) > _DELTA_FRAME_BYTES:
                    self._delta_bytes += len(line) - _DELTA_FRAME_BYTES
            # A block of this kind begins with each web search.
            elif (
                b'"server_tool_use"' in line and b'"web_search"' in line and b'"content_block_start"' in line
            ):
                self._searches += 1
            # The first text is the beginning of `message_start` and of `message_stop`.
            elif b'"message_st' in line or b'"message_delta"' in line:
                self._read_event(_parse_object(line.removeprefix(b"data:")))

    def _read_event(self, event: dict[str, Any]) -> None:
        """Store the usage that an event of a stream reports, and whether the stream has ended."""
        match event.get("type"):
            case "message_start":
                self._read_message(event.get("message"))
                # `_read_message` has set these to True, as for a whole message: a stream has only begun.
                self._is_whole = self._has_output_count = False
            case "message_delta":
                self._has_output_count = True
                self._merge(event.get("usage"))
            case "message_stop":
                self._is_whole = True

    def _read_message(self, message: Any) -> None:
        """Store the model and the usage of a message: a whole one, or the one at the start of a stream.

        Anything but a JSON object is ignored.
        """
        if isinstance(message, dict):
            model = message.get("model")
            # Half a surrogate pair, which no database stores, becomes `?`: it would stop the recording of all
            # usage. Some services repeat the name that a container has sent.
            name = model[:200].encode("utf-8", "replace").decode() if isinstance(model, str) else None
            self._model = name
            # True for a whole message; `_read_event` sets both back at the start of a stream.
            self._is_whole = self._has_output_count = True
            self._merge(message.get("usage"))

    def _merge(self, usage: Any) -> None:
        """Store a report of usage. Its numbers are totals and replace earlier ones; missing ones stay."""
        if isinstance(usage, dict):
            reported = {name: value for name, value in usage.items() if value is not None}
            self._usage = {**(self._usage or {}), **reported}

    def _search_count(self) -> int:
        """Return the number of web searches, at most `MAX_SEARCHES`.

        The service reports it at the end of its answer; before that, the searches in the stream count.
        """
        assert self._usage is not None
        tool_use = self._usage.get("server_tool_use")
        reported = _count(tool_use, "web_search_requests") if isinstance(tool_use, dict) else 0
        # With the final count of tokens, the service's number of searches is final, too.
        seen_in_stream = 0 if self._has_output_count else self._searches
        return min(max(reported, seen_in_stream), MAX_SEARCHES)

    def _output_count(self) -> int:
        """Return the number of output tokens: as the service reports it or, before that, an estimate."""
        assert self._usage is not None
        counted = _count(self._usage, "output_tokens")
        if self._has_output_count:
            return counted
        # Estimated by the deltas: a client that disconnects before the final count would have its text for
        # free.
        return max(counted, self._deltas, self._delta_bytes // BYTES_A_TOKEN)


def _parse_object(text: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object that a text consists of; an empty one if the text is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _hour_cache_tokens(usage: dict[str, Any]) -> int:
    """Return how many of the tokens written to the prompt cache are stored for an hour, by one report."""
    cached = usage.get("cache_creation")
    return _count(cached, "ephemeral_1h_input_tokens") if isinstance(cached, dict) else 0


def _count(usage: dict[str, Any], name: str) -> int:
    """Return the count `name` in a report of usage; 0 if it is missing or impossible."""
    value = usage.get(name)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS
    return int(value) if is_count else 0  # type: ignore[arg-type]


AS_OF = "2026-03"
"""The month in which the list prices were read."""
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
"""Maps the prefix of a model's name to its input price and its output price."""
_FAMILIES = ("opus", "sonnet", "haiku")
_LONG_INPUT_TOKENS = 200_000
"""Tokens above which an input is long, and may cost more."""
_LONG_INPUT, _LONG_OUTPUT = 2.0, 1.5
"""Factors of list prices for requests with longer input, for models that charge so."""
_CHARGES_LENGTH = ("claude-sonnet-4-5", "claude-sonnet-4-0", "claude-sonnet-4-20250514")
_FAST, _FAST_LONG = 6.0, 12.0
"""Factors of list prices in fast mode, the second for an input of over 200,000 tokens. They are the highest
that the service has charged (for Opus 4.6): with newer models a budget stops early, not late.
"""
_US_ONLY = 1.1
"""Factor of all token prices for an answer that is computed in the United States alone."""
_CACHE_READ, _CACHE_WRITE, _CACHE_WRITE_HOUR = 0.1, 1.25, 2.0
"""Factors of the input price for tokens that are read from the prompt cache, written to it for five minutes,
and written for an hour.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A model's prices, in billionths of a dollar per token."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cache_write_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The estimated cost of an answer."""

    nano_usd: int | None
    """The cost in billionths of a dollar; None if no price is known for such models."""
    is_assumed: bool = False
    """Whether the model is newer than the list: it counts as the most expensive of
    its family, so that a budget stops.
    """


def per_million(
    *,
    input: float,  # noqa: A002 - the service's own word
    output: float,
    cache_read: float | None = None,
    cache_write: float | None = None,
    cache_write_hour: float | None = None,
) -> Price:
    """Return the price of a model from its prices in dollars per million tokens.

    The prices of the prompt cache may be None: then they are multiples of the input price, as in the list.
    """
    return Price(
        input=_nano_usd(input),
        output=_nano_usd(output),
        cache_read=_nano_usd(input * _CACHE_READ if cache_read is None else cache_read),
        cache_write=_nano_usd(input * _CACHE_WRITE if cache_write is None else cache_write),
        cache_write_hour=_nano_usd(
            input * _CACHE_WRITE_HOUR if cache_write_hour is None else cache_write_hour
        ),
    )


class Prices:
    """The prices of models: those that the owner set, else the first party's list prices."""

    def __init__(self, own: Mapping[str, Price] | None = None, *, search_usd: float = SEARCH_USD) -> None:
        """Store the owner's prices.

        `own` maps the name of a model, or a prefix of names, to a price; the longest match counts.
        `search_usd` is the price of one web search in dollars.
        """
        longest_first = sorted((own or {}).items(), key=lambda pair: len(pair[0]), reverse=True)
        self._own = dict(longest_first)
        self._search_usd = search_usd

    def of(self, model: str | None) -> Price | None:
        """Return the price of a model, or None when it is not known.

        The owner's price counts before the list's. A price belongs to all models whose names begin with the
        name that it is stored under; of several such names of the owner the longest counts. A gateway's
        prefix, such as `us.anthropic.`, is ignored, but a price that the owner set for the whole name counts,
        too.
        """
        full_name = model or ""
        name = _without_gateway_prefix(full_name)
        # `_own` is sorted by the length of the names, the longest first.
        own_prices = (
            price
            for prefix, price in self._own.items()
            if _has_prefix(full_name, prefix) or _has_prefix(name, prefix)
        )
        list_prices = (
            per_million(input=list_price[0], output=list_price[1]) for list_price in _listed_prices(name)
        )
        return next(own_prices, None) or next(list_prices, None)

    def cost_at(self, service: ModelService | None, usage: ParsedUsage) -> Cost:
        """Estimate the cost of an answer of a service, by the price that the owner set for the service.

        For Anthropic's service without such a price, and for the one of `.env` (None), `cost_of` is used.
        Another service without such a price costs nothing if it is in the owner's network and needs no key
        (`known_price`); otherwise the cost is unknown.
        """
        if service is None or (service.kind == "anthropic" and service.price is None):
            return self.cost_of(usage)
        price = service.known_price
        if price is None:
            return Cost(nano_usd=None)
        # `cost_of` looks the price up by the model that the answer names, so it is stored under that name.
        own_prices = {usage.model or "": per_million(input=price.input, output=price.output)}
        return Prices(own_prices, search_usd=self._search_usd).cost_of(usage)

    def cost_of(self, usage: ParsedUsage) -> Cost:
        """Estimate the cost of an answer by the prices of its model.

        An unknown Claude model counts as the most expensive of its family. For any other unknown model the
        cost is unknown.
        """
        known_price = self.of(usage.model)
        price = known_price or _family_price(usage.model or "")
        if price is None:
            return Cost(nano_usd=None)
        hour_tokens = min(usage.cache_write_hour_tokens, usage.cache_write_tokens)
        input_cost = (
            usage.input_tokens * price.input
            + usage.cache_read_tokens * price.cache_read
            + (usage.cache_write_tokens - hour_tokens) * price.cache_write
            + hour_tokens * price.cache_write_hour
        )
        input_factor, output_factor = _factors(usage)
        output_cost = usage.output_tokens * price.output
        search_cost = usage.searches * round(self._search_usd * 1_000_000_000)
        nano_usd = round(input_cost * input_factor) + round(output_cost * output_factor) + search_cost
        return Cost(nano_usd=min(nano_usd, MAX_NANO_USD), is_assumed=known_price is None)


def _factors(usage: ParsedUsage) -> tuple[float, float]:
    """Return the factors by which this answer's input and output cost more, as `(input, output)`."""
    input_factor, output_factor = _factors_of_speed_and_length(usage)
    place_factor = _US_ONLY if usage.is_us_only else 1.0
    return input_factor * place_factor, output_factor * place_factor


def _factors_of_speed_and_length(usage: ParsedUsage) -> tuple[float, float]:
    """Return the factors by which input and output cost more in fast mode and with a long input.

    They are `(input, output)`.
    """
    whole_input = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    is_long = whole_input > _LONG_INPUT_TOKENS
    if usage.is_fast:
        return (_FAST_LONG, _FAST_LONG) if is_long else (_FAST, _FAST)
    name = _without_gateway_prefix(usage.model or "")
    charges_length = any(_has_prefix(name, prefix) for prefix in _CHARGES_LENGTH)
    return (_LONG_INPUT, _LONG_OUTPUT) if is_long and charges_length else (1.0, 1.0)


def _family_price(model: str) -> Price | None:
    """Return the highest listed price in the family of a Claude model; None for any other model.

    For a Claude model of an unknown family, it is the highest listed price of all.
    """
    if "claude-" not in model:
        return None
    # The empty text is contained in every name, so for a new family all prices are compared.
    family = next((name for name in _FAMILIES if name in model), "")
    highest = max(price for listed_name, price in _USD_PER_MILLION.items() if family in listed_name)
    return per_million(input=highest[0], output=highest[1])


def _listed_prices(name: str) -> list[tuple[float, float]]:
    """Return the list prices `(input, output)` that match a model's name, in dollars per million tokens."""
    return [price for prefix, price in _USD_PER_MILLION.items() if _has_prefix(name, prefix)]


def _without_gateway_prefix(name: str) -> str:
    """Return a Claude model's name from `claude-` on; any other name unchanged."""
    # `find` returns -1 for a name without it.
    return name[max(0, name.find("claude-")) :]


def _has_prefix(name: str, prefix: str) -> bool:
    """Return whether a name begins with a prefix that no further digit continues.

    So `claude-opus-4-12` does not match `claude-opus-4-1`.
    """
    return name.startswith(prefix) and not name[len(prefix) : len(prefix) + 1].isdigit()


def _nano_usd(usd_per_million: float) -> int:
    """Return a price in dollars per million tokens as billionths of a dollar per token."""
    return round(usd_per_million * 1000)
