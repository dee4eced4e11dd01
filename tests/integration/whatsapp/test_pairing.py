"""Pairing with a real bridge process: by the host, at a terminal, in a browser."""

from __future__ import annotations

import asyncio
import io
from dataclasses import fields
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from base64 import b64encode

from starlette.testclient import TestClient

from orchestrator.base.clock import SystemClock
from orchestrator.channels.whatsapp import bridge_process, library, pairing
from orchestrator.channels.whatsapp.bridge_process import BridgeProcess
from orchestrator.channels.whatsapp.pairing import Pairing, PairingProgress, PairingRefused, number_of
from orchestrator.channels.whatsapp.protocol import PairingCode
from orchestrator.cli import whatsapp as screen
from orchestrator.domain.errors import ChannelDown
from orchestrator.web.api.routes import ApiServices, api_routes
from orchestrator.web.app import web_app
from tests.doubles.whatsapp_phone import Phone
from tests.support.until import until

UNREACHABLE = "failed to dial whatsapp web websocket: dial tcp: lookup web.whatsapp.com: no such host"


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Phone(tmp_path) as made:
        made.haste["pairing_session.SETTLE_SECONDS"] = 0
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def attempt(phone: Phone) -> Pairing:
    return Pairing(phone.store, clock=SystemClock())


async def test_a_scanned_code_pairs_and_the_login_is_for_the_owner_alone(phone, attempt):
    phone.codes = ["2@one", "2@two"]
    await attempt.request_code()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(attempt.run())
        await until(lambda: attempt._progress.qr == "2@two", "the newest code")
        shown = await attempt.progress()
        phone.scan()

    assert (shown.state, "point it at this code" in shown.text) == ("showing", True)
    assert running.result() == await attempt.progress()
    assert running.result().account == f"+{phone_number()}"
    assert (phone.store.with_suffix(".lock")).stat().st_mode & 0o077 == 0


def phone_number() -> str:
    from tests.support.whatsapp_names import ANDY

    return ANDY


async def test_a_code_that_nobody_takes_expires(phone, attempt):
    phone.haste |= {"pairing_session.FIRST_SECONDS": 0, "pairing_session.SLACK_SECONDS": 0}

    await attempt.request_code()
    told = await attempt.run()

    assert (told.state, told.text) == ("expired", pairing.EXPIRED)
    assert (await attempt.request_code()).state == "starting"


async def test_a_number_gets_letters_and_who_gives_up_leaves_no_process(phone, attempt):
    await attempt.request_code("+49 (170) 123-4567")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(attempt.run())
        await until(lambda: attempt._progress.letters, "letters")
        shown = await attempt.progress()
        running.cancel()

    assert (shown.letters, "4567-ABCD" in shown.text) == ("4567-ABCD", True)
    await until(lambda: not phone.is_connected, "gone")
    assert (await attempt.progress()).state == "failed"


@pytest.mark.slow
async def test_who_asks_for_the_other_kind_of_code_gets_it_at_once(phone, attempt):
    await attempt.request_code()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(attempt.run())
        await until(lambda: attempt._progress.qr, "a QR code")
        assert (await attempt.request_code()).qr
        await attempt.request_code("+49 170 1234567")
        await until(lambda: attempt._progress.letters == "4567-ABCD", "letters")
        phone.scan()

    assert running.result().state == "paired"


async def test_no_network_is_told_in_one_line_with_its_mend(phone, attempt):
    phone.refusal = UNREACHABLE

    await attempt.request_code()
    told = await attempt.run()

    assert told.state == "failed"
    assert told.text.startswith("WhatsApp cannot be reached from this machine (no such host): fix its")
    assert "\n" not in told.text


async def test_a_login_in_use_is_told_and_left_alone(phone, attempt):
    from filelock import FileLock

    heard: list[Any] = []
    host = BridgeProcess(bridge_process.command(phone.store, "--own", "49@s.whatsapp.net"), heard.append)
    with FileLock(phone.store.with_suffix(".lock")):
        await attempt.request_code()
        told, _ = await asyncio.gather(attempt.run(), host.run())

    assert (told.state, "another process" in told.text) == ("failed", True)
    # A host that comes while somebody pairs tries again soon.
    assert [one.state for one in heard] == ["disconnected"]
    assert phone.logins == 0


async def test_who_is_paired_is_not_paired_again(phone, attempt):
    phone.pair()

    with pytest.raises(PairingRefused, match="is paired with"):
        await attempt.request_code()
    assert not attempt.is_requested


async def test_a_damaged_login_says_what_to_do(phone, attempt):
    phone.store.write_bytes(b"no database at all, " * 100)

    with pytest.raises(ChannelDown, match="remove it and pair"):
        await attempt.request_code()


@pytest.mark.parametrize("number", ["0170 1234567", "49", "call me", "+49 170 12345678901234", "+49-1x"])
async def test_what_is_no_number_is_refused(attempt, number):
    with pytest.raises(PairingRefused, match="write it with its country"):
        await attempt.request_code(number)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("failed to find libmagic.  Check your installation"), "install it"),
        (ModuleNotFoundError("No module named 'neonize'", name="neonize"), "pip install neonize"),
        (OSError("wrong ELF class"), "reinstall neonize"),
    ],
)
def test_a_library_that_does_not_load_names_its_mend_in_one_line(error, words):
    told = library.fix_for(error)

    assert words in told
    assert "\n" not in told


# What is shown


def a_code(**given: Any) -> dict[str, Any]:
    text = pairing.instruction_of(
        PairingCode(seconds=20, qr=given.get("qr", ""), letters=given.get("letters", ""))
    )
    return PairingProgress(state="showing", until_ms=1_780_000_000_000, text=text, **given).model_dump()


def test_a_code_at_a_terminal_takes_the_place_of_the_one_before(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # wide enough for each line to take one row

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    shown = screen.Screen(out, ZoneInfo("Asia/Seoul"))
    shown.show(a_code(qr="2@one"))
    shown.show(a_code(qr="2@one"))
    shown.show(a_code(qr="2@two"))

    assert out.getvalue().count("Linked devices") == 2
    lines = out.getvalue().split("\x1b[")[0].count("\n")
    assert f"\x1b[{lines}A\x1b[J" in out.getvalue()


def test_a_state_that_needs_more_rows_than_lines_is_replaced_whole(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    shown = screen.Screen(out, ZoneInfo("Asia/Seoul"))
    shown.show({"state": "starting", "text": f"{'x' * 40}\n\n{'y' * 41}"})
    shown.show({"state": "starting", "text": "again"})

    assert "\x1b[6A\x1b[J" in out.getvalue()


def test_a_code_in_a_file_has_no_marks_of_a_terminal():
    out = io.StringIO()
    shown = screen.Screen(out, ZoneInfo("Asia/Seoul"))
    shown.show(a_code(qr="2@one"))
    shown.show(a_code(letters="ABCD-EFGH"))

    assert "\x1b" not in out.getvalue()
    assert "    ABCD-EFGH\n" in out.getvalue()
    assert max(map(len, screen.qr_text("2@" + "x" * 235).splitlines())) <= 78


class Harness:
    """Pairs nobody; keeps what it is asked."""

    def __init__(self, told: PairingProgress) -> None:
        self.told, self.asked = told, []

    async def progress(self) -> PairingProgress:
        return self.told

    async def request_code(self, phone: str = "") -> PairingProgress:
        self.asked.append(phone)
        self.told = PairingProgress(state="starting")
        return self.told


def browser(harness: Harness | Pairing, **headers: str) -> TestClient:
    services = dict.fromkeys(field.name for field in fields(ApiServices)) | {
        "pairings": {"whatsapp": harness}
    }
    app = web_app(api_routes(ApiServices(**services)), token="secret", on_refusal=lambda _: None)
    return TestClient(app, base_url="http://127.0.0.1", headers=headers)


PROGRAM = {"Authorization": "Bearer secret"}


def test_a_reason_is_broken_between_its_words():
    reason = "WhatsApp cannot be reached from this machine: fix its network or proxy and try again."
    progress = PairingProgress(**(a_code() | {"state": "failed", "text": reason}))
    shown = browser(Harness(progress), **PROGRAM).get("/whatsapp/pair").text
    lines = [part.split(">")[-1] for part in shown.split("</text>")[:-1]]
    assert " ".join(lines) == reason


def test_the_code_is_an_svg_that_refreshes():
    answer = browser(Harness(PairingProgress(**a_code(qr="2@one"))), **PROGRAM).get("/whatsapp/pair")

    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["refresh"] == "3"
    assert answer.headers["cache-control"] == "no-store"
    assert "<path" in answer.text


def test_a_first_look_asks_for_a_code_and_a_later_one_does_not():
    harness = Harness(PairingProgress())
    client = browser(harness, **PROGRAM)
    client.get("/whatsapp/pair")
    client.get("/whatsapp/pair")

    assert harness.asked == [""]


def test_a_page_asks_for_a_new_code_only_when_its_button_is_pressed():
    harness = Harness(PairingProgress(state="expired", text="The code has <expired>."))
    client = browser(harness, **PROGRAM, Accept="text/html,*/*")

    page = client.get("/whatsapp/pair")
    assert "The code has &lt;expired&gt;." in page.text
    assert "refresh" not in page.headers
    assert harness.asked == []

    answer = client.post("/whatsapp/pair", data={"phone": "+49 170 1"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/whatsapp/pair")
    assert harness.asked == ["+49 170 1"]


def test_a_number_that_is_none_is_said_on_the_page_with_the_form_again(tmp_path):
    client = browser(Pairing(tmp_path / "whatsapp.db", clock=SystemClock()), **PROGRAM, Accept="text/html")

    answer = client.post("/whatsapp/pair", data={"phone": "<0170>"})

    assert answer.status_code == 409
    assert "&lt;0170&gt;" in answer.text
    assert "<form" in answer.text


def test_a_program_asks_and_looks_in_json():
    harness = Harness(PairingProgress(state="failed", text="no"))
    client = browser(harness, **PROGRAM, Accept="application/json")

    assert client.get("/whatsapp/pair").json()["text"] == "no"
    assert client.post("/whatsapp/pair", json={"phone": "491701"}).json()["state"] == "starting"
    assert harness.asked == ["491701"]
    assert client.post("/whatsapp/pair", content=b"{").status_code == 400


@pytest.mark.parametrize(
    "typed",
    [
        *("+49 (170) 123-4567", "49170.1234567", "\uff0b４９１７０１２３４５６７"),
        *(
            "+49 (0)170 1234567",
            "49(0) 170/1234567",
            "(+49) (0)170 1234567",
            "+49 (0) 170 1234567",
        ),  # the zero is for calls at home
        *("\u202a+49 170 1234567\u202c", "+49 170\u20111234567", "+49\u2060170\u20131234567\u200e"),
    ],
)
def test_a_number_of_a_phone_has_the_digits_that_whatsapp_knows(typed):
    assert number_of(typed) == "491701234567"


def test_a_zero_that_italians_dial_also_from_abroad_stays():
    assert number_of("+39 (0)6 12345678") == "390612345678"


@pytest.mark.parametrize("typed", ["0170", "+1", "+٤٩١٧٠١٢٣٤٥٦٧", "49170123456789012"])
def test_what_is_no_number_of_a_phone_is_refused_with_an_example(typed):
    with pytest.raises(PairingRefused, match="is no phone number"):
        number_of(typed)


def test_what_is_no_number_of_a_phone_is_read_no_further_and_refused():
    harness = Harness(PairingProgress())
    taken = []

    def endless():
        for _ in range(1000):
            taken.append(1)
            yield b"x" * 1024

    client = browser(harness, **PROGRAM, Accept="application/json")
    answers = [
        client.post("/whatsapp/pair", content=content)
        for content in (endless(), b"{", b'{"phone": "1"}' + b" " * 2000)
    ]

    assert [one.status_code for one in answers] == [413, 400, 413]
    assert harness.asked == []


@pytest.mark.parametrize("path", ["/dashboards/family/tools/task_create", "/chat"])
def test_a_deeply_nested_body_is_refused(path):
    answer = browser(Harness(PairingProgress()), **PROGRAM).post(path, content=b'{"phone": ' + b"[" * 100_000)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_body")


def test_the_letters_and_the_sentences_are_readable_in_the_svg_too():
    told = PairingProgress(
        state="failed", text="WhatsApp & <co> cannot be reached from this machine, as far as it knows."
    )
    shown = browser(Harness(told), **PROGRAM).get("/whatsapp/pair").text

    assert "WhatsApp &amp; &lt;co&gt;" in shown
    assert (
        "ABCD-EFGH"
        in browser(Harness(PairingProgress(**a_code(letters="ABCD-EFGH"))), **PROGRAM)
        .get("/whatsapp/pair")
        .text
    )


def test_nobody_without_the_token_sees_a_code_and_a_browser_is_asked_for_it():
    harness = Harness(PairingProgress(**a_code(qr="2@one")))
    refused = browser(harness, Accept="text/html").get("/whatsapp/pair")
    program = browser(harness).get("/whatsapp/pair")
    wrong = browser(harness, Authorization="Basic " + b64encode(b"me:wrong").decode()).get("/whatsapp/pair")
    broken = browser(harness, Authorization="Basic ???").get("/whatsapp/pair")
    right = browser(harness, Authorization="Basic " + b64encode(b"me:secret").decode()).get("/whatsapp/pair")

    assert [one.status_code for one in (refused, program, wrong, broken, right)] == [401, 401, 401, 401, 200]
    assert refused.headers["www-authenticate"].startswith("Basic")
    assert "www-authenticate" not in program.headers


def test_a_link_or_a_form_of_another_page_may_not_come_in():
    harness = Harness(PairingProgress())
    linked = browser(harness, **PROGRAM, **{"Sec-Fetch-Site": "cross-site"}).get("/whatsapp/pair")
    posted = browser(harness, **PROGRAM, Origin="https://evil.example").post("/whatsapp/pair")

    assert (linked.status_code, posted.status_code, harness.asked) == (403, 403, [])
