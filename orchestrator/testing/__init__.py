"""Tests that other people's packages run on the channels they write for Andy.

Start with `channel_contract.py`.
"""

from __future__ import annotations

import pytest

# Without it a failed test of a package elsewhere would say nothing but AssertionError.
pytest.register_assert_rewrite("orchestrator.testing.channel_contract")
