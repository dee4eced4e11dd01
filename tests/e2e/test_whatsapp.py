"""WhatsApp through `andy up` as a process: from a phone to an agent and back, across kills."""

from __future__ import annotations

import pytest

pytest.importorskip("tests.fakes.whatsapp_library", exc_type=ImportError)

from pathlib import Path

from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from tests.fakes import whatsapp_events as wa
from tests.fakes.andy_process import AndyProcess, until
from tests.fakes.whatsapp_phone import Phone

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


def test_a_question_on_the_phone_is_answered_there(andy, phone):
    register(andy)
    phone.pair()
    phone.write(wa.heard("@Andy add milk to the shopping list", message_id="3A1"))

    until(lambda: phone.texts(FAMILY), what="an answer on the phone")

    assert "milk" in phone.texts()[0]
    assert phone.texts()[0].startswith("Andy: ")
    until(lambda: (FAMILY, False) in phone.signs, what="the typing sign gone again")
    assert phone.signs[0] == (FAMILY, True)


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


def test_the_host_starts_and_other_chats_work_while_whatsapp_is_down(andy, phone):
    phone.refusal = "no such host"
    phone.pair()

    until(
        lambda: andy.listed("status")["channels"]["whatsapp"]["state"] == "disconnected", what="told as down"
    )
    assert andy.say("help")["outcome"] == "answered"

    phone.refusal = None
    until(
        lambda: andy.listed("status")["channels"]["whatsapp"]["state"] == "connected", what="back by itself"
    )


def test_the_host_does_not_load_the_library_and_stays_small(andy, phone):
    until(lambda: andy.listed("status")["channels"]["whatsapp"]["state"] == "unpaired", what="unpaired")

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
