from __future__ import annotations

import pytest

from orchestrator.containers.termination import RunEndKind, classify
from orchestrator.domain.errors import ContainerError, EngineGone, ImageMissing
from orchestrator.domain.protocols import Exit


@pytest.mark.parametrize(
    ("end", "kind", "is_retryable"),
    [
        (Exit(code=0), RunEndKind.CLOSED, True),
        (Exit(code=1), RunEndKind.CRASHED, True),
        (Exit(code=137), RunEndKind.CRASHED, True),
        (Exit(code=143), RunEndKind.STOPPED, True),
        (Exit(code=137, was_oom_killed=True), RunEndKind.OOM_KILLED, True),
        (Exit(code=1, was_oom_killed=True), RunEndKind.OOM_KILLED, True),
        (Exit(code=None), RunEndKind.LOST, True),
        (ImageMissing(), RunEndKind.IMAGE_MISSING, True),
        (EngineGone(), RunEndKind.ENGINE_GONE, True),
        (ContainerError("no"), RunEndKind.REFUSED, True),
        (PermissionError(13, "Permission denied"), RunEndKind.REFUSED, True),
    ],
)
def test_every_end_has_its_kind(end, kind, is_retryable):
    outcome = classify(end)

    assert (outcome.kind, outcome.is_retryable) == (kind, is_retryable)
    assert outcome.reason.endswith(".")


def test_what_the_runner_said_goes_before_the_exit_code():
    outcome = classify(Exit(code=1), failure="the order is of another version.")

    assert outcome.kind is RunEndKind.CRASHED
    assert outcome.reason == "the order is of another version."


def test_the_last_line_of_stderr_is_the_detail():
    outcome = classify(Exit(code=1, stderr_tail="Traceback …\n  File\nValueError: 안녕\n\n"))

    assert outcome.detail == "ValueError: 안녕"
    assert "ValueError" not in outcome.reason


def test_the_error_that_refused_is_the_detail():
    assert classify(ContainerError("bind source path does not exist: /x")).detail.endswith("/x")
