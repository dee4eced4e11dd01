"""A group's mailbox to plant things in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hostile_mailbox import Post


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)
