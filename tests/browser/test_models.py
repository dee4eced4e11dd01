"""A model service is added, chosen and put in order in the browser, on a desk and on a phone."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.signed_in import Visit, assert_accessible, assert_nothing_sticks_out
from tests.processes.andy import AndyProcess


def test_a_service_is_added_and_chosen_and_stands_in(visitor: Visit, andy: AndyProcess) -> None:
    visitor.allowed.append("422")
    page = visitor.page
    page.goto(f"{andy.address}/console/models")
    page.locator("summary", has_text="Add a service").click()
    page.get_by_label("Name", exact=True).fill("local")
    page.get_by_label("Kind").select_option("llama.cpp")
    page.get_by_label("Window").fill("4096")
    save = page.locator("form[action$='/models/services']").get_by_role("button", name="Save")
    save.click()
    expect(page.get_by_text("a first request needs 16,000")).to_be_visible()
    assert page.get_by_label("Window").input_value() == "4096", "what was typed stays"
    page.get_by_label("Window").fill("32768")
    save.click()
    expect(page.get_by_text("The service local is there.")).to_be_visible()

    page.locator("summary", has_text="Choose a model").click()
    page.locator("input[name=chosen]").fill("local/qwen3")
    page.locator("form[action$='/models/choices']").last.get_by_role("button", name="Save").click()
    expect(page.get_by_role("cell", name="local/qwen3")).to_be_visible()
    page.get_by_label("Model 1", exact=True).fill("claude-haiku-4-5")
    page.get_by_label("Use model 1 even if it costs more").check()
    page.locator("form[action$='/models/fallback']").get_by_role("button", name="Save").click()
    expect(page.get_by_label("Use model 1 even if it costs more")).to_be_checked()
    assert_accessible(page)
    page.set_viewport_size({"width": 390, "height": 844})
    assert_nothing_sticks_out(page)
    (service,) = andy.listed("models", "list")
    assert (service["name"], service["window"], service["used_for"]) == ("local", 32768, ["all"])
