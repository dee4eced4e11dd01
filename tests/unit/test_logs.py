"""What the log shows, and what it does not."""

from __future__ import annotations

import io
import logging as stdlib_logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zoneinfo import ZoneInfo

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


@pytest.mark.parametrize(
    ("stream", "is_quiet", "seen"),
    [(Terminal, True, False), (Terminal, False, True), (io.StringIO, True, True)],
)
def test_a_terminal_shows_errors_alone_unless_it_is_asked_for_more(
    stream, is_quiet, seen, monkeypatch, fresh_structlog, tmp_path
):
    shown = stream()
    monkeypatch.setattr(sys, "stderr", shown)
    with logging.LogFile(tmp_path / "andy.log") as file:
        logging.configure("info", log_file=file, is_quiet=is_quiet)
        log = structlog.get_logger()
        log.info("host.started")
        log.warning("mailbox.refused")
        log.error("loop.gave_up")

    assert ("host.started" in shown.getvalue()) is seen
    assert ("mailbox.refused" in shown.getvalue()) is seen
    assert "loop.gave_up" in shown.getvalue()
    assert "host.started" in (tmp_path / "andy.log").read_text()


def test_a_log_on_a_full_disk_stops_nobody_who_logs(monkeypatch, fresh_structlog):
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        logging.configure("info")
        structlog.get_logger().error("loop.restarts")
        monkeypatch.undo()
        with suppress(OSError):
            full.close()


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


def test_a_line_of_the_log_file_is_read_with_its_level_and_in_local_time(tmp_path):
    path = tmp_path / "host.log"
    event = {"event": "channel.lost", "level": "error", "timestamp": "2026-11-25T18:09:57.5Z"}
    with logging.LogFile(path) as kept:
        kept(None, "error", {"channel": "telegram", **event})
    (written,) = path.read_text(encoding="utf-8").splitlines()

    line = logging.read_line(written, ZoneInfo("Asia/Seoul"))

    assert line.level == "error"
    assert line.text == "2026-11-26 03:09:57 [error] channel.lost  channel=telegram"


ODD_TEXT = "caf\udce9\u202egnp.txt"
"""A text with half of a surrogate pair, as of a file name that is no UTF-8, and with a mark of direction."""


def test_a_text_that_no_encoding_can_write_is_logged_with_escapes(monkeypatch, fresh_structlog, tmp_path):
    path, shown = tmp_path / "andy.log", io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    with logging.LogFile(path) as kept:
        logging.configure("info", log_file=kept)
        structlog.get_logger().warning("mailbox.refused", file=ODD_TEXT, files=["한", ODD_TEXT])
        kept.handler.handle(stdlib_logging.LogRecord("lib", 30, "", 0, ODD_TEXT, None, None))

    escaped = "caf\\udce9\\u202egnp.txt"
    own, library = path.read_text(encoding="utf-8").splitlines()
    assert (own.count(escaped), library.count(escaped)) == (2, 1)
    assert "한" in own
    assert shown.getvalue().splitlines() == [own]
    line = logging.read_line(own, ZoneInfo("UTC"))
    assert line.text.endswith(f"[warning] mailbox.refused  file={escaped} files={['한', ODD_TEXT]}")
    assert line.fields["file"] == escaped


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-25 [error    ] loop.restarts", "error"),
        ("Traceback (most recent call last):", ""),
        ('{"event": 1', ""),
        ('{"event": "x", "level": "error"}', ""),
        ('{"event": "x", "level": "error", "timestamp": 5}', ""),
        ("[" * 100_000, ""),
        ("null", ""),
        ("", ""),
    ],
)
def test_a_line_that_is_none_of_ours_stays_as_it_is(line, level):
    assert logging.read_line(line, ZoneInfo("UTC")) == logging.HostLogLine(level=level, text=line)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("{blanks}x", "{blanks}x"),
        ("x a=b {word}", "x"),
        ("{blanks}a=b", ""),
        ("a =b{blanks}b=c d", "a =b"),
    ],
)
def test_a_long_line_for_a_terminal_is_read_in_one_go(text, event):
    long = {"blanks": " " * 1_000_000, "word": "w" * 1_000_000}
    line = logging.read_line("2026-01-01T00:00:00Z [info     ] " + text.format(**long), ZoneInfo("UTC"))
    assert line.event == event.format(**long)
    assert line.fields in ({}, {"a": "b"}, {"b": "c"})
