"""The owner speaks as Andy, sets reminders and tasks: beside the running host, which acts at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.andy import AndyProcess, until


@pytest.fixture(scope="module")
def andy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AndyProcess]:
    with AndyProcess(tmp_path_factory.mktemp("owner") / "home") as process:
        assert process.cli("groups", "register", "family").returncode == 0
        yield process


def said(andy: AndyProcess, text: str) -> list[dict[str, object]]:
    return [row for row in andy.listed("messages", "family") if row["text"] == text]


def test_the_owner_speaks_as_andy(andy: AndyProcess) -> None:
    done = andy.cli("say", "family", "Dinner is at seven today.")

    assert (done.returncode, done.stdout.strip()) == (0, "It is on its way to 'family'."), done.stderr
    until(lambda: said(andy, "Dinner is at seven today."), what="it is said")
    (row,) = said(andy, "Dinner is at seven today.")
    assert (row["sender"], row["outcome"]) == ("Andy", "said")
    assert "message.say" in [one["kind"] for one in andy.listed("audit", "family")]


def test_what_cannot_be_said_is_refused(andy: AndyProcess) -> None:
    for words, told in ((("family", " "), "empty"), (("nowhere", "hello"), "no group 'nowhere'")):
        done = andy.cli("say", *words)
        assert (done.returncode, told in done.stderr) == (1, True), done.stderr


def test_a_reminder_that_is_moved_near_is_sent_at_once(andy: AndyProcess) -> None:
    assert andy.cli("reminders", "add", "family", "Bring the cake", "--at", "in 5 hours").returncode == 0
    (one,) = andy.listed("reminders", "list")

    done = andy.cli("reminders", "move", str(one["id"]), "--at", "in 1 second")

    assert done.returncode == 0, done.stderr
    until(lambda: said(andy, "Bring the cake"), what="the reminder is sent")
    assert andy.listed("reminders", "list", "family") == []
    again = andy.cli("reminders", "cancel", str(one["id"]))
    assert (again.returncode, "is sent already" in again.stderr) == (1, True)


def test_a_task_is_asked_at_its_time(andy: AndyProcess) -> None:
    done = andy.cli("tasks", "add", "family", "echo from a task", "--at", "in 1 second")

    assert done.returncode == 0, done.stderr
    until(lambda: said(andy, "from a task"), what="the task is answered")
