"""A phone is paired from the browser, by letters or by a code that renews itself, and then followed."""

from __future__ import annotations

import pytest

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from collections.abc import Iterator

from neonize.aioze import events
from playwright.sync_api import expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.doubles import whatsapp_events as wa
from tests.doubles.whatsapp_phone import Phone
from tests.processes.andy import AndyProcess


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phone]:
    with Phone(tmp_path_factory.mktemp("channels") / "home") as made:
        made.haste |= {"pairing_session.SETTLE_SECONDS": 0, "pairing_session.FIRST_SECONDS": 0}
        made.codes = ["2@one", "2@two"]
        yield made


@pytest.fixture(scope="module")
def andy(phone: Phone) -> Iterator[AndyProcess]:
    with AndyProcess(phone.store.parent.parent, environment=phone.environment) as host:
        yield host


def test_a_phone_is_paired_by_letters_or_a_code_and_its_connection_is_followed(
    visitor: Visit, andy: AndyProcess, phone: Phone
) -> None:
    page = visitor.page
    visitor.allowed.append("422")
    page.goto(f"{andy.address}/console/channels")
    expect(page.get_by_text("not paired")).to_be_visible()
    assert_accessible(page)

    page.get_by_label("Phone number").fill("12")
    page.get_by_role("button", name="Show the letters").click()
    expect(page.get_by_text("'12' is no phone number")).to_be_visible()
    assert page.get_by_label("Phone number").input_value() == "12"

    page.get_by_label("Phone number").fill("+49 170 1234567")
    page.get_by_role("button", name="Show the letters").click()
    expect(page.get_by_text("4567-ABCD")).to_be_visible()
    assert_accessible(page)

    page.get_by_role("button", name="Show a QR code").click()
    code = page.get_by_role("img", name="QR code")
    expect(code.locator("svg path")).to_have_count(2)
    expect(page.get_by_text("4567-ABCD")).to_have_count(0)
    assert_accessible(page)

    phone.scan()
    expect(page.get_by_text(f"WhatsApp is paired with +{wa.ANDY}.")).to_be_visible()
    expect(page.get_by_text("connected", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Show a QR code")).to_be_hidden()
    assert_accessible(page)

    phone.write(events.LoggedOutEv(OnConnect=True, Reason=1))
    expect(page.get_by_text("logged out", exact=True)).to_be_visible()
    expect(page.get_by_text("pair it with the phone again")).to_be_visible()
    expect(page.get_by_text(f"WhatsApp has ended the login of +{wa.ANDY}.")).to_be_visible()
    expect(page.get_by_text("WhatsApp is paired with")).to_have_count(0)
    page.get_by_text("Preferences").click()
    page.get_by_label("Language").select_option("ko")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("휴대전화와 다시 연결하세요")).to_be_visible()
    page.goto(f"{andy.address}/console/now")
    needed = page.get_by_role("region", name="확인할 일").get_by_role("listitem").filter(has_text="WhatsApp")
    expect(needed).to_contain_text("휴대전화와 다시 연결하세요")
    expect(needed.get_by_role("link", name="다시 연결하기")).to_be_visible()
