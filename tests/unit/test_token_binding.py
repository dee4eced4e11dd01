"""A token of a run counts for the first address that shows it."""

from __future__ import annotations

from orchestrator.domain.values import RunId
from orchestrator.proxies.run_tokens import MAX_REMEMBERED, TokenBinding


def test_the_first_address_has_the_token_for_good():
    peers = TokenBinding()
    assert peers.owns(RunId("a"), "10.0.0.2")
    assert not peers.owns(RunId("a"), "10.0.0.3")
    assert peers.owns(RunId("b"), "10.0.0.3")
    assert peers.owns(RunId("a"), "10.0.0.2")


def test_runs_that_asked_long_ago_are_forgotten_and_no_others():
    peers = TokenBinding()
    for number in range(MAX_REMEMBERED + 1):
        peers.owns(RunId(str(number)), "10.0.0.2")
        peers.owns(RunId("busy"), "10.0.0.2")
    assert not peers.owns(RunId("busy"), "10.0.0.3")
    assert peers.owns(RunId("0"), "10.0.0.3")
