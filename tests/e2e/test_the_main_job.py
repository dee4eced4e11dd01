"""A message the whole way, through the real command, store, runtime and agent."""

from __future__ import annotations

from pathlib import Path

from tests.processes.andy import AndyProcess, until


def test_a_message_a_follow_up_and_a_reminder(tmp_path: Path, runtime: str) -> None:
    with AndyProcess(tmp_path / "home", runtime=runtime) as andy:
        first = andy.say("add milk to the shopping list")
        second = andy.say("show the shopping list")
        assert "milk" in second["reply"]
        turns = {row["id"]: row["run_id"] for row in andy.rows("SELECT id, run_id FROM turns")}
        assert turns[first["turn"]] == turns[second["turn"]]

        andy.say("remind me in 5 seconds to stretch")
        (due,) = andy.rows("SELECT due_ms FROM notifications")
        sent = until(
            lambda: andy.rows(
                "SELECT sent_ms FROM messages WHERE content LIKE '%stretch%' AND sender = 'andy'"
                " AND id IN (SELECT message_id FROM outbox WHERE dedupe_key LIKE 'notification:%')"
            ),
            what="the reminder is sent",
        )
        assert sent[0]["sent_ms"] >= due["due_ms"]
        assert len(andy.rows("SELECT 1 FROM turns")) == 3, "a reminder needs no turn"


def test_a_reminder_survives_a_restart(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        andy.say("remind me in 4 seconds to stretch")
        andy.kill()
        andy.start()
        until(
            lambda: andy.rows("SELECT 1 FROM notifications WHERE status = 'delivered'"),
            what="the reminder is sent",
        )
        assert len(andy.rows("SELECT 1 FROM messages WHERE content LIKE '⏰%stretch%'")) == 1


def test_untriggered_talk_is_context_and_is_said_to_be(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        assert andy.cli("groups", "register", "family", "--name", "Family").returncode == 0
        ignored = andy.say("we need milk", group="family")
        assert (ignored["outcome"], ignored["reason"]) == ("ignored", "no trigger")
        told = andy.cli("chat", "family", "-m", "and bread").stdout
        assert told.strip() == "(Not for Andy: no trigger. To call him, write @Andy in the message.)"
        answered = andy.say("@Andy echo hello", group="family")
        assert "hello" in answered["reply"]
        listed = andy.listed("messages", "family")
        assert [row["outcome"] for row in listed] == [*["ignored: no trigger"] * 2, "answered", "said"]


def test_listing_works_with_andy_down(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home") as andy:
        andy.say("echo hello")
        assert andy.terminate() == 0
        assert andy.listed("turns")[0]["state"] == "answered"
        assert andy.listed("outbox", "list") == []
        assert [row["folder"] for row in andy.listed("groups", "list")] == ["main"]
        assert andy.cli("status").returncode == 3


def test_the_demo_shows_all_of_it(tmp_path: Path, runtime: str) -> None:
    done = AndyProcess(tmp_path).cli("demo", "--runtime", runtime)
    assert done.returncode == 0, done.stdout + done.stderr
    for shown in ("container", "handed to the container that runs already", "⏰", "✓ All steps succeeded"):
        assert shown in done.stdout
