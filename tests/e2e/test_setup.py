"""`andy setup`, by flags and at a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from orchestrator.channels import discovery
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_phone import Phone
from tests.processes.andy import AndyProcess, until

SELF = f"{wa.ANDY}@s.whatsapp.net"


@pytest.fixture
def phone(tmp_path: Path):
    with Phone(tmp_path / "home") as made:
        made.haste["pairing_session.SETTLE_SECONDS"] = 0
        yield made


@pytest.fixture
def andy(tmp_path: Path, phone: Phone):
    with AndyProcess(tmp_path / "home", environment=phone.environment) as started:
        yield started


def scan_when_asked(phone: Phone) -> threading.Thread:
    def wait() -> None:
        until(lambda: phone.is_connected, what="asked for a code")
        phone.scan()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_flags_take_a_running_andy_to_a_first_message_in_the_owners_own_chat(andy, phone):
    scanning = scan_when_asked(phone)
    done = andy.cli(
        "setup", "--credential", "none", "--whatsapp", "--shared-number", "--main", "self", "--test"
    )
    scanning.join()

    assert (done.returncode, done.stderr) == (0, "")
    assert f"Sent to {SELF}" in done.stdout
    assert ["I am here" in text for text in phone.texts(SELF)] == [True]

    own = wa.jid(wa.ANDY, device=3)
    for number, chat in enumerate((wa.jid(wa.ANDY), wa.lid(wa.ANDY_LID))):
        question = wa.heard(
            f"echo hello {number}", message_id=f"3A{number}", chat=chat, sender=own, is_from_me=True
        )
        phone.write(question)
        until(
            lambda wanted=number: f"Andy: hello {wanted}" in phone.texts(SELF), what="an answer in that chat"
        )
    assert andy.say("echo from here")["reply"] == "from here"
    until(
        lambda: "Andy: from here" in phone.texts(SELF), what="what is said at the terminal is seen there too"
    )


def test_bad_input_leaves_nothing_half_written(andy):
    andy.kill()
    home = andy.home
    for flags, reason in (
        (("--credential", "nonsense", "--main", "local"), "neither an API key"),
        (("--credential", "sk-ant-api-1", "--main", "self"), "Nobody has paired"),
        (("--credential", "sk-ant-api-1", "--main", "what is that"), "no phone number"),
        (("--credential", "sk-ant-api-1", "--phone", "0170"), "no phone number"),
        (("--credential", "sk-ant-api-1", "--main", "x@y"), "no address"),
    ):
        done = andy.cli("setup", *flags)
        assert (done.returncode, done.stdout) == (1, ""), flags
        assert reason in done.stderr
        assert not (home / ".env").exists()


def test_the_number_that_is_andys_alone_is_known_from_the_settings_too(andy):
    (andy.home / ".env").write_text("ASSISTANT_HAS_OWN_NUMBER=true\n")

    done = andy.cli("setup", "--credential", "sk-ant-api-1", "--whatsapp", "--main", "self")

    assert (done.returncode, done.stdout) == (1, "")
    assert "The account is Andy's alone: name your own number" in done.stderr
    assert (andy.home / ".env").read_text() == "ASSISTANT_HAS_OWN_NUMBER=true\n"


def test_with_andy_down_each_step_is_kept_and_it_can_be_run_again(andy, phone):
    andy.kill()
    phone.pair()
    first = andy.cli(
        "setup", "--credential", "sk-ant-api-1", "--own-number", "--main", "+49 170 1234567", "--test"
    )
    again = andy.cli("setup", "--credential", "CLAUDE_CODE_OAUTH_TOKEN=sk-ant-oat-2")

    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    env = andy.home / ".env"
    assert env.stat().st_mode & 0o777 == 0o600
    assert env.read_text() == (
        "# ANTHROPIC_API_KEY=sk-ant-api-1\nASSISTANT_HAS_OWN_NUMBER=true\n"
        "CLAUDE_CODE_OAUTH_TOKEN=sk-ant-oat-2\n"
    )
    assert "sk-ant" not in first.stdout + again.stdout
    andy.start()
    until(lambda: phone.texts("491701234567@s.whatsapp.net"), what="the test message")


def test_a_key_can_be_read_from_stdin(andy):
    andy.kill()
    given = subprocess.run(
        [*andy.program, "setup", "--credential", "-"],
        env=andy.environment, input="sk-ant-api-3\n", capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert given.returncode == 0, given.stderr
    assert (andy.home / ".env").read_text() == "ANTHROPIC_API_KEY=sk-ant-api-3\n"


def test_a_model_of_a_local_service_is_chosen_without_a_key(andy):
    andy.kill()
    done = andy.cli("setup", "--model", "ollama/qwen3:8b", "--main", "local")
    refused = andy.cli("setup", "--model", "nobody/qwen3")
    again = andy.cli("setup", "--credential", "none", "--main", "local")

    assert "ollama/qwen3:8b is chosen already" in again.stdout
    assert "offline agent" not in again.stdout
    assert done.returncode == 0, done.stderr
    assert "ollama/qwen3:8b at http://127.0.0.1:11434" in done.stdout
    assert not (andy.home / ".env").exists()
    (listed,) = json.loads(andy.cli("models", "list", "--json").stdout)
    assert (listed["name"], listed["model"], listed["used_for"]) == ("ollama", "qwen3:8b", ["all"])
    assert (refused.returncode, "is no KIND/MODEL" in refused.stderr) == (1, True)


def test_a_chosen_model_whose_service_has_no_key_yet_is_not_taken_for_set_up(andy):
    andy.kill()
    for model in ("openrouter/qwen/qwen3-coder", "sonnet"):
        if "/" in model:
            assert andy.cli("models", "add", "openrouter", "--model", "qwen/qwen3-coder").returncode == 0
        andy.cli("models", "use", model)
        again = andy.cli("setup", "--credential", "none", "--main", "local")
        assert "chosen already" not in again.stdout, model


def test_the_key_of_another_service_is_written_under_its_own_name(andy):
    andy.kill()
    done = andy.cli("setup", "--model", "openrouter/qwen/qwen3-coder", "--credential", "sk-or-1")

    assert done.returncode == 0, done.stderr
    assert (andy.home / ".env").read_text() == "OPENROUTER_API_KEY=sk-or-1\n"
    assert "sk-or-1" not in done.stdout


def test_a_person_is_led_through_it(andy, phone):
    leader, follower = pty.openpty()
    scanning = scan_when_asked(phone)
    process = subprocess.Popen(
        [*andy.program, "setup"], env=andy.environment, stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    shown = b""

    def wait_for(words: str) -> None:
        nonlocal shown
        while words.encode() not in shown:
            shown += os.read(leader, 4096)

    others = [one.title for one in discovery.installed() if one.log_in is not None]
    assert "Matrix" in others
    # A secret, then what is offered each time.
    for question, answer in (
        ("Whose model (anthropic, or llama.cpp", ""),
        ("empty for none):", ""),
        ("Pair WhatsApp now?", ""),
        ("Andy's alone", "n"),
        *((f"Log in to {title}, too?", "") for title in others),
        ("talk to Andy alone", ""),
        ("Send a test message", "y"),
    ):
        wait_for(question)
        os.write(leader, f"{answer}\n".encode())
    with suppress(OSError):  # a terminal ends with an error
        wait_for("All is set up")
    process.wait(180)
    os.close(leader)
    scanning.join()

    assert process.returncode == 0, shown.decode()
    assert f"Sent to {SELF}" in shown.decode()
