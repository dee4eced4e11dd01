"""Decide whether a test may be skipped.

Where `TESTS_NEED_ALL` is set, only a reason that no installation can change allows a skip.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

NEED_ALL = bool(os.environ.get("TESTS_NEED_ALL"))
"""Whether this machine was promised to have all that the tests use, as `.ci/run` sees to."""
ON_PURPOSE = "on purpose: "
"""The beginning of a reason that holds everywhere: another command runs the test, or it makes no sense."""
THIS_MACHINE = "this machine: "
"""The beginning of a reason that lies in the kernel, or in what it lets this process do."""
IS_SOAK = "SOAK_KILLS" in os.environ
"""Whether this is a part of `make soak`, which has hours."""
only_in_soak = pytest.mark.skipif(not IS_SOAK, reason=f"{ON_PURPOSE}it takes minutes: 'make soak'")


class NoSkips:
    """A plugin of pytest: a test that is skipped for something that could be installed fails."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        return judged((yield))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        return judged((yield))


def judged(report: Report) -> Report:
    """Return a report, as that of a failure where it is one of a skip that is not allowed."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return report
    assert isinstance(report.longrepr, tuple)
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not reason.startswith((ON_PURPOSE, THIS_MACHINE)):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} may not be skipped, for TESTS_NEED_ALL is set: {reason}"
    return report
