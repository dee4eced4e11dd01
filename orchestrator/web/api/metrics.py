"""`GET /metrics`: counts for Prometheus, gathered at each request.

Most are read from the store, so they survive restarts. Live containers are counted as they are now;
containers that were started ahead of their turn, and refusals by the model proxy, from the start of the host.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.containers.live_runs import ForesightFigures
from orchestrator.domain.failures import ModelError, Outage
from orchestrator.domain.turn_signs import Sign
from orchestrator.domain.values import LiveRun
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Database
from orchestrator.store.money import usage
from orchestrator.store.notices import notices
from orchestrator.store.runs import model_refusals, turn_outages, turns

if TYPE_CHECKING:
    from prometheus_client import Metric

ENDED, OPEN = ("answered", "failed"), ("queued", "running")
NO_TURN = "none"
"""The label of usage that belongs to no turn."""
DIRECTIONS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cache_read_tokens",
    "cache_write": "cache_write_tokens",
}
"""Maps the labels of tokens to the fields of `usage.Sums`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFigures:
    """All figures at one moment."""

    used: Mapping[usage.Share, usage.Sums]
    """The sums of all usage, such as tokens, by group and kind of turn."""
    turns: Mapping[str, int]
    outbox: Mapping[str, int]
    containers: Mapping[str, int]
    proxy_refusals: Mapping[str, int]
    """The requests that the model proxy refused since the start of the host, counted by HTTP status."""
    notices: Mapping[str, int] = field(default_factory=dict)
    service_refusals: Mapping[str, int] = field(default_factory=dict)
    """The periods, not over yet, in which the model service refuses requests, counted by cause."""
    started_ahead: ForesightFigures = field(default_factory=ForesightFigures)
    """The containers that were started ahead of their turn since the start of the host."""
    outages: Mapping[str, int] = field(default_factory=dict)
    """The turns that wait for an outage to end, by its cause."""


class Metrics:
    """Gathers the figures of the store, the pool and the proxy."""

    def __init__(
        self,
        database: Database,
        *,
        live: Callable[[], Sequence[LiveRun]],
        refusals: Callable[[], Mapping[int, int]],
        foresight: Callable[[], ForesightFigures] = ForesightFigures,
    ) -> None:
        """Store the sources of the figures.

        Args:
            database: the store.
            live: returns the runs whose containers are alive.
            refusals: returns the counts of requests that the model proxy refused, by HTTP status.
            foresight: returns the figures about containers that were started before a turn was there.
        """
        self._database = database
        self._live = live
        self._refusals = refusals
        self._foresight = foresight

    async def gather(self) -> MetricFigures:
        """Return all figures as of now.

        Its `service_refusals` are those of this moment; `proxy_refusals` and `started_ahead` count from the
        start of the host.
        """
        async with self._database.reading() as tx:
            return MetricFigures(
                used=await usage.shares(tx),
                turns=await turns.counts(tx),
                outbox=await outbox.counts(tx),
                notices=await notices.counts(tx),
                service_refusals=Counter(
                    refusal.cause.value for refusal in await model_refusals.unfinished(tx)
                ),
                outages={cause: outage.turns for cause, outage in (await turn_outages.current(tx)).items()},
                started_ahead=self._foresight(),
                containers=Counter(run.state.value for run in self._live()),
                proxy_refusals={str(status): count for status, count in self._refusals().items()},
            )


def metrics_route(metrics: Metrics) -> Route:
    """Return the route of `/metrics`."""

    async def answer(_: Request) -> Response:
        """Answer with the figures in the text format of Prometheus."""
        figures = await metrics.gather()
        # In a thread, because the first call loads the library.
        text = await asyncio.to_thread(exposition, figures)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return Route("/metrics", answer)


def exposition(figures: MetricFigures) -> bytes:
    """Return the figures in the text format of Prometheus. The first call blocks, as it loads a library."""
    from prometheus_client import CollectorRegistry, generate_latest

    # A registry for this answer alone, filled from the store: counters that the library keeps itself would
    # begin at 0 after a restart.
    registry = CollectorRegistry()
    registry.register(_Collector(_families(figures)))
    return generate_latest(registry)


def _families(figures: MetricFigures) -> list[Metric]:
    """Return the figures as metrics of the library. Known states without entries have the number 0."""
    ended = {state: figures.turns.get(state, 0) for state in ENDED}
    # Errors that are not permanent pass by themselves, so they have no label here.
    refused = {
        cause.value: figures.service_refusals.get(cause.value, 0)
        for cause in ModelError
        if cause.is_permanent
    }
    waiting = {cause.value: figures.outages.get(cause.value, 0) for cause in Outage}
    still_open = {state: figures.turns.get(state, 0) for state in OPEN}
    return [
        _tokens(figures),
        _answers(figures),
        _cost(figures),
        _counter("andy_model_refusals", "Requests the proxy refused.", "status", figures.proxy_refusals),
        _gauge("andy_model_refused", "Whether the model service refuses for good.", refused, "cause"),
        _gauge("andy_turns_in_outage", "Turns that wait for an outage to end.", waiting, "cause"),
        _counter("andy_turns", "Turns that have ended.", "outcome", ended),
        _gauge("andy_turns_open", "Turns that have not ended.", still_open),
        _gauge("andy_outbox", "Messages to chats.", figures.outbox),
        _gauge("andy_notices", "Notices to agents.", figures.notices),
        _gauge("andy_containers", "Containers that live.", figures.containers),
        *_started_ahead(figures.started_ahead),
    ]


def _counter(name: str, text: str, label: str, numbers: Mapping[str, int]) -> Metric:
    """Return a counter with a number for each value of its label; `text` is its help text."""
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, text, labels=[label])
    for value, number in numbers.items():
        family.add_metric([value], number)
    return family


def _gauge(name: str, text: str, numbers: Mapping[str, int], label: str = "state") -> Metric:
    """Return a gauge with a number for each value of its label; `text` is its help text."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=[label])
    for value, number in numbers.items():
        family.add_metric([value], number)
    return family


def _started_ahead(figures: ForesightFigures) -> list[Metric]:
    """Return the metrics of containers that were started ahead: before a turn was there.

    Hits are those that were given a turn, misses those that were not; both are counted by sign, the reason
    for which a turn was likely.
    """
    from prometheus_client.core import CounterMetricFamily

    hits = {sign.value: figures.hits[sign] for sign in Sign}
    misses = {sign.value: figures.misses[sign] for sign in Sign}
    wasted = "andy_foresight_wasted_cpu_seconds"
    return [
        _counter("andy_foresight_hits", "Containers started ahead that were given a turn.", "sign", hits),
        _counter("andy_foresight_misses", "Containers started ahead in vain.", "sign", misses),
        CounterMetricFamily(
            wasted,
            "Processor time of containers started ahead in vain, about.",
            value=figures.wasted_cpu_seconds,
        ),
    ]


def _tokens(figures: MetricFigures) -> Metric:
    """Return the counter of tokens, by group, kind of turn and direction, such as "input"."""
    from prometheus_client.core import CounterMetricFamily

    labels = ["group", "kind", "direction"]
    family = CounterMetricFamily("andy_tokens", "Tokens the model read or wrote.", labels=labels)
    for share, sums in figures.used.items():
        for direction, name in DIRECTIONS.items():
            family.add_metric([share.folder, share.kind or NO_TURN, direction], getattr(sums, name))
    return family


def _answers(figures: MetricFigures) -> Metric:
    """Return the counter of the model's answers, by group and kind of turn."""
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily("andy_model_answers", "Answers of the model.", labels=["group", "kind"])
    for share, sums in figures.used.items():
        family.add_metric([share.folder, share.kind or NO_TURN], sums.requests)
    return family


def _cost(figures: MetricFigures) -> Metric:
    """Return the counter of what the model's answers cost in dollars, by group and kind of turn."""
    from prometheus_client.core import CounterMetricFamily

    text = "What the model's answers cost in dollars, about."
    family = CounterMetricFamily("andy_model_cost_usd", text, labels=["group", "kind"])
    for share, sums in figures.used.items():
        dollars = sums.cost_nano_usd / 1e9  # stored in billionths
        family.add_metric([share.folder, share.kind or NO_TURN], dollars)
    return family


class _Collector:
    """A collector, in the form that the library expects."""

    def __init__(self, families: Sequence[Metric]) -> None:
        """`families` are the metrics to hand over."""
        self._families = families

    def collect(self) -> Sequence[Metric]:
        """Return the metrics. The library calls it."""
        return self._families
