"""What the log shows, and what it does not."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
import structlog

from orchestrator.base import logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def fresh_structlog() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_traceback_shows_no_values(stream, monkeypatch, fresh_structlog):
    shown = stream()
    monkeypatch.setattr(sys, "stderr", shown)
    logging.configure("info")

    def answer(text: str) -> None:
        raise ValueError(len(text))

    try:
        answer("sk-ant-" + "x" * 9)
    except ValueError:
        structlog.get_logger().exception("run.broke")

    assert "run.broke" in shown.getvalue()
    assert "ValueError" in shown.getvalue()
    assert "sk-ant-xxx" not in shown.getvalue()
