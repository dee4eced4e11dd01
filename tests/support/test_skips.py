"""Test that a skip which an installation would prevent is a failure where `TESTS_NEED_ALL` is set."""

from __future__ import annotations

import pytest

from tests.support.skips import ON_PURPOSE, THIS_MACHINE, judged


def skipped(reason: str) -> pytest.CollectReport:
    return pytest.CollectReport("tests/x.py", "skipped", ("x.py", 1, f"Skipped: {reason}"), result=None)


def test_a_skip_for_what_is_missing_fails_and_says_so():
    report = judged(skipped("apt-get install flite"))

    assert report.outcome == "failed"
    assert "apt-get install flite" in str(report.longrepr)


@pytest.mark.parametrize("reason", [f"{ON_PURPOSE}make soak", f"{THIS_MACHINE}no vxlan"])
def test_a_skip_that_no_installation_changes_stays_one(reason):
    assert judged(skipped(reason)).outcome == "skipped"
