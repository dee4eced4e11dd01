from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from orchestrator.domain.values import Folder
from orchestrator.store.money.usage import Share, Sums
from orchestrator.web.api.metrics import MetricFigures, exposition


def samples(figures: MetricFigures) -> dict[frozenset[str], float]:
    """Every sample as the library itself reads it: name and label values → number."""
    return {
        frozenset({sample.name, *sample.labels.values()}): sample.value
        for family in text_string_to_metric_families(exposition(figures).decode())
        for sample in family.samples
    }


def test_what_is_counted_is_told_as_prometheus_reads_it() -> None:
    sums = Sums(
        requests=3,
        input_tokens=10,
        output_tokens=20,
        cache_read_tokens=30,
        cache_write_tokens=40,
        cost_nano_usd=1_500_000_000,
    )
    told = samples(
        MetricFigures(
            used={Share(Folder("family"), "chat"): sums, Share(Folder("main"), None): Sums(requests=1)},
            turns={"answered": 5, "running": 1},
            outbox={"sent": 7, "dead": 1},
            containers={"idle": 2},
            proxy_refusals={"402": 4},
            service_refusals={"key_refused": 1},
            outages={"model": 2},
        )
    )
    assert told[frozenset({"andy_tokens_total", "family", "chat", "input"})] == 10
    assert told[frozenset({"andy_tokens_total", "family", "chat", "cache_write"})] == 40
    assert told[frozenset({"andy_model_answers_total", "family", "chat"})] == 3
    assert told[frozenset({"andy_model_answers_total", "main", "none"})] == 1
    assert told[frozenset({"andy_model_cost_usd_total", "family", "chat"})] == 1.5
    assert told[frozenset({"andy_model_refusals_total", "402"})] == 4
    assert told[frozenset({"andy_model_refused", "key_refused"})] == 1
    assert told[frozenset({"andy_model_refused", "no_credit"})] == 0
    assert told[frozenset({"andy_turns_in_outage", "model"})] == 2
    assert told[frozenset({"andy_turns_total", "answered"})] == 5
    assert told[frozenset({"andy_turns_total", "failed"})] == 0
    assert told[frozenset({"andy_turns_open", "running"})] == 1
    assert told[frozenset({"andy_outbox", "dead"})] == 1
    assert told[frozenset({"andy_containers", "idle"})] == 2


def test_each_help_text_is_understood_without_those_of_other_metrics() -> None:
    figures = MetricFigures(used={}, turns={}, outbox={}, containers={}, proxy_refusals={})
    families = text_string_to_metric_families(exposition(figures).decode())
    texts = {family.name: family.documentation for family in families}
    assert texts["andy_model_cost_usd"] == "What the model's answers cost in dollars, about."
    assert texts["andy_turns_open"] == "Turns that have not ended."
    assert (
        texts["andy_foresight_wasted_cpu_seconds"]
        == "Processor time of containers started ahead in vain, about."
    )


def test_nothing_yet_is_no_error() -> None:
    told = samples(MetricFigures(used={}, turns={}, outbox={}, containers={}, proxy_refusals={}))
    assert told[frozenset({"andy_turns_total", "answered"})] == 0
