"""WhatsApp through `andy up` as a process: from a phone to an agent and back, across kills."""

from __future__ import annotations

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neonize.aioze import events
from neonize.proto.Neonize_pb2 import GroupInfo, GroupName
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from tests.doubles import whatsapp_events as wa
from tests.doubles import whatsapp_store
from tests.doubles.whatsapp_phone import Phone
from tests.processes.andy import AndyProcess, until

FAMILY = f"{wa.FAMILY}@g.us"


@pytest.fixture
def phone(tmp_path: Path):
    with Phone(tmp_path / "home") as made:
        yield made


@pytest.fixture
def andy(tmp_path: Path, phone: Phone):
    with AndyProcess(tmp_path / "home", environment=phone.environment) as started:
        yield started


def register(andy: AndyProcess) -> None:
    done = andy.cli("groups", "register", "family", "--jid", FAMILY, "--name", "Family")
    assert done.returncode == 0, done.stderr


def connection(andy: AndyProcess) -> dict[str, Any]:
    with andy.http() as http:
        told: dict[str, Any] = http.get("/status").json()["channels"]["whatsapp"]
    return told


def test_a_question_on_the_phone_is_answered_there(andy, phone):
    register(andy)
    phone.pair()
    phone.write(wa.heard("@Andy add milk to the shopping list", message_id="3A1"))

    until(lambda: phone.texts(FAMILY), what="an answer on the phone")

    assert "milk" in phone.texts()[0]
    assert phone.texts()[0].startswith("Andy: ")
    until(lambda: (FAMILY, False) in phone.signs, what="the typing sign gone again")
    assert phone.signs[0] == (FAMILY, True)


def test_a_new_group_is_in_mains_snapshot_before_anyone_writes_in_it(andy, phone):
    cooking = GroupInfo(JID=wa.group("777"), GroupName=GroupName(Name="Cooking"))
    phone.groups = [cooking]
    phone.pair()
    snapshot = andy.home / "data/env/main/groups.json"
    andy.say("help")
    until(lambda: "Cooking" in snapshot.read_text(), what="the group that was there on connecting")

    phone.groups = [cooking, GroupInfo(JID=wa.group("888"), GroupName=GroupName(Name="Chess"))]
    phone.write(events.JoinedGroupEv(GroupInfo=phone.groups[1]))
    until(lambda: "Chess" in snapshot.read_text(), what="the group that came later")


def test_killing_the_host_at_any_point_answers_each_message_once(andy, phone):
    register(andy)
    phone.pair()
    for number in range(3):
        phone.write(wa.heard(f"@Andy add thing{number} to the list", message_id=f"3A{number}"))
        until(lambda wanted=number: len(phone.texts()) >= wanted, what="answers so far")
        andy.kill()
        andy.start()
    until(
        lambda: all(any(f"thing{n}" in text for text in phone.texts()) for n in range(3)), what="all answers"
    )
    phone.write(wa.heard("@Andy help", message_id="3A9"))
    until(lambda: len(phone.texts()) >= 2, what="the last answer")

    marks = [one.mark for one in phone.shown]
    assert len(marks) == len(set(marks))
    rows = andy.rows("SELECT id, count(*) AS n FROM messages WHERE is_bot_message = 0 GROUP BY id")
    assert {row["n"] for row in rows} == {1}


def test_a_kill_while_a_picture_is_fetched_loses_neither_its_message_nor_its_turn(andy, phone):
    register(andy)
    phone.pair()
    phone.hanging.add(b"k")
    part = e2e.ImageMessage(
        mediaKey=b"k", directPath="/v", mimetype="image/png", fileLength=1, caption="@Andy help"
    )
    phone.write(wa.heard(Message(imageMessage=part), message_id="3A1"))
    until(
        lambda: andy.rows("SELECT 1 FROM messages WHERE file_until_ms IS NOT NULL"), what="the message alone"
    )
    andy.kill()
    phone.hanging.clear()
    phone.files[b"k"] = b"x"
    andy.start()

    until(lambda: phone.texts(FAMILY), what="an answer")
    (message,) = andy.rows("SELECT content, turn_id FROM messages WHERE is_bot_message = 0")
    assert "[image attachments/" in message["content"]
    assert [(one["id"], one["attempt"]) for one in andy.rows("SELECT * FROM turns")] == [
        (message["turn_id"], 1)
    ]
    assert len(phone.shown) == 1


def test_the_host_starts_and_other_chats_work_while_whatsapp_is_down(andy, phone):
    phone.refusal = "no such host"
    phone.pair()

    until(lambda: connection(andy)["state"] == "disconnected", what="told as down")
    assert andy.say("help")["outcome"] == "answered"

    phone.refusal = None
    until(lambda: connection(andy)["state"] == "connected", what="back by itself")


def test_the_host_does_not_load_the_library_and_stays_small(andy, phone):
    until(lambda: connection(andy)["state"] == "unpaired", what="unpaired")

    loaded = Path(f"/proc/{andy.pid}/maps").read_text()
    assert "neonize" not in loaded
    phone.pair()
    until(lambda: phone.is_connected, what="connected")
    assert "neonize" not in Path(f"/proc/{andy.pid}/maps").read_text()


def test_nothing_of_the_login_can_be_seen_by_a_container(andy, phone):
    phone.pair()
    register(andy)
    part = e2e.ImageMessage(mediaKey=b"k", directPath="/v", mimetype="image/png", fileLength=1)
    phone.files[b"k"] = b"x"
    until(lambda: phone.is_connected, what="connected")
    phone.write(wa.heard(Message(imageMessage=part), message_id="3A1"))
    until(lambda: list((andy.home / "groups/family").glob("attachments/*")), what="the picture")

    for name in ("whatsapp-bridge.db", "whatsapp.lock"):
        assert (andy.home / "store" / name).stat().st_mode & 0o077 == 0, name
    assert (andy.home / "store").stat().st_mode & 0o066 == 0
    assert (andy.home / "data/whatsapp").stat().st_mode & 0o077 == 0


# Pairing


def test_with_andy_up_the_command_line_pairs_through_it_and_the_next_message_is_answered(andy, phone):
    phone.haste["pairing_session.SETTLE_SECONDS"] = 0
    register(andy)
    with spawned(andy, "whatsapp", "pair") as pairing:
        assert pairing.stdout is not None
        assert pairing.stderr is not None
        until(lambda: "▀" in pairing.stdout.readline(), what="the code is shown")
        phone.scan()
        shown, errors = pairing.stdout.read(), pairing.stderr.read()
        assert (pairing.wait(180), errors) == (0, "")

    assert f"WhatsApp is paired with +{wa.ANDY}." in shown
    phone.write(wa.heard("@Andy add milk to the shopping list", message_id="3A1"))
    until(lambda: phone.texts(FAMILY), what="an answer")
    assert phone.logins == 2
    again = andy.cli("whatsapp", "pair")
    assert (again.returncode, "paired with" in again.stderr) == (1, True)


def test_a_pairing_that_failed_shows_in_the_status_until_one_succeeds(andy, phone):
    phone.refusal = "failed to dial whatsapp web websocket: dial tcp: lookup web.whatsapp.com: no such host"
    failed = andy.cli("whatsapp", "pair")
    assert (failed.returncode, "cannot be reached" in failed.stderr) == (1, True)

    until(lambda: andy.listed("whatsapp", "status")["last_pairing"], what="it is noted")
    told = andy.cli("whatsapp", "status").stdout
    assert "last pairing" in told
    assert ": WhatsApp cannot be reached from this machine" in told


def test_with_andy_down_the_command_line_pairs_by_itself_and_andy_finds_the_login(andy, phone):
    phone.haste |= {"pairing_session.FIRST_SECONDS": 0, "pairing_session.SLACK_SECONDS": 0}
    andy.kill()
    expired = andy.cli("whatsapp", "pair")
    assert (expired.returncode, "expired" in expired.stderr) == (1, True)
    failed = andy.listed("whatsapp", "status")
    assert (failed["state"], "nobody took it" in failed["last_pairing"]) == ("unpaired", True)
    assert ": The code has expired and nobody took it" in andy.cli("whatsapp", "status").stdout

    phone.haste = {"pairing_session.SETTLE_SECONDS": 0}
    with spawned(andy, "whatsapp", "pair", "--phone", "+49 170 1234567") as pairing:
        until(lambda: phone.is_connected, what="asked for a code")
        assert pairing.stdout is not None
        until(lambda: "4567-ABCD" in pairing.stdout.readline(), what="the letters")
        phone.scan()
        assert pairing.wait(180) == 0
    down = andy.listed("whatsapp", "status")
    assert (down["state"], down["account"], down["is_running"]) == ("down", f"+{wa.ANDY}", False)
    assert (down["last_pairing"], down["last_pairing_ms"]) == ("", None)

    andy.start()
    until(lambda: connection(andy)["state"] == "connected", what="connected")
    assert connection(andy)["connected_since_ms"]


def test_the_status_tells_the_last_receipt_and_why_the_connection_broke(andy, phone):
    phone.pair()
    until(lambda: connection(andy)["state"] == "connected", what="connected")
    phone.write(events.ReceiptEv(MessageIDs=["3EB1"], Timestamp=1))
    until(lambda: connection(andy).get("last_receipt_ms"), what="the receipt")
    phone.write(events.LoggedOutEv(OnConnect=True, Reason=1))
    until(lambda: connection(andy)["state"] == "logged_out", what="logged out")
    until(lambda: connection(andy).get("advice"), what="advice")

    told = andy.cli("whatsapp", "status").stdout
    assert "logged out" in told
    assert "last receipt       2" in told
    assert "pair it with the phone again" in told
    assert "pair it with the phone again" in andy.cli("status").stdout

    andy.kill()
    whatsapp_store.log_out(phone.store)
    down = andy.listed("whatsapp", "status")
    assert (down["state"], down["account"], "pair it" in down["advice"]) == ("logged_out", "", True)
    phone.store.unlink()
    phone.pair(device=10)
    down = andy.listed("whatsapp", "status")
    assert (down["state"], down["account"], down["advice"]) == ("down", f"+{wa.ANDY}", "")


def test_a_page_pairs_a_host_without_a_screen(andy, phone):
    phone.haste["pairing_session.SETTLE_SECONDS"] = 0
    with andy.http(Accept="text/html") as http:
        http.get("/whatsapp/pair")
        page = until(lambda: found if "<path" in (found := http.get("/whatsapp/pair")).text else None)
        assert page.headers["refresh"]
        phone.scan()
        until(lambda: f"+{wa.ANDY}" in http.get("/whatsapp/pair").text, what="paired")


# Files


def test_a_file_that_an_agent_sends_reaches_the_phone_once(andy, phone):
    register(andy)
    phone.pair()
    (andy.home / "groups/family/notes.txt").write_text("all of it")
    phone.write(wa.heard("@Andy send me the file notes.txt", message_id="3A1"))

    until(lambda: len(phone.shown) == 2, what="the file and the words")
    (sent,) = [one.message.documentMessage for one in phone.shown if one.message.HasField("documentMessage")]
    assert (sent.fileName, phone.files[sent.mediaKey]) == ("notes.txt", b"all of it")


@contextmanager
def spawned(andy: AndyProcess, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`andy …`, running beside the test."""
    with subprocess.Popen(
        [*andy.program, *arguments],
        env=andy.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
