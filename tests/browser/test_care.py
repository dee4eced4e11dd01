"""Backups are made, checked and fetched in the browser, and Andy is looked after."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import httpx
from playwright.sync_api import expect

from tests.browser.conftest import PATIENCE_MS
from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess


def test_a_backup_is_made_looked_into_and_fetched_and_a_broken_one_is_known(
    visitor: Visit, andy: AndyProcess
) -> None:
    page = visitor.page
    page.goto(f"{andy.address}/console/care")
    page.get_by_role("button", name="Make a backup").click()
    expect(page.get_by_text("is made.")).to_be_visible()
    (made,) = (andy.home / "backups").glob("*.tar.gz")
    assert_accessible(page)

    with page.expect_download() as fetched:
        page.get_by_role("link", name="Download").click()
    with tarfile.open(fileobj=io.BytesIO(fetched.value.path().read_bytes())) as archive:
        assert any(name.endswith("messages.db") for name in archive.getnames())

    page.get_by_role("link", name="Look inside").click()
    expect(page.get_by_text("can be restored")).to_be_visible()
    expect(page.get_by_role("button", name="Restore and restart")).to_be_visible()
    assert_accessible(page)

    made.write_bytes(made.read_bytes()[:-2_000])
    page.reload()
    expect(page.get_by_text("cannot be restored")).to_be_visible()
    expect(page.get_by_role("button", name="Restore and restart")).to_be_hidden()
    assert [path.name for path in (andy.home / "backups").iterdir()] == [made.name], (
        "nothing is left of looking inside"
    )


def test_settings_are_shown_as_they_are_in_force_with_their_place_and_without_secrets(
    visitor: Visit, andy: AndyProcess
) -> None:
    page = visitor.page
    (andy.home / ".env").write_text(
        "ANDY_LOG_LEVEL=debug\nANDY_SPEECH_COMMAND=speak --key hunter2hunter2\nANDY_AGENT=claude\n"
    )
    try:
        page.goto(f"{andy.address}/console/care")
        row = page.get_by_role("row").filter(has=page.get_by_text("ANDY_AGENT", exact=True))
        expect(row).to_contain_text("offline")
        expect(row).to_contain_text("the command line")
        expect(row).not_to_contain_text("changed since the start")
        row = page.get_by_role("row").filter(has=page.get_by_text("ANDY_LOG_LEVEL", exact=True))
        expect(row).to_contain_text("info")
        expect(row).to_contain_text("changed since the start debug")
        row = page.get_by_role("row").filter(has=page.get_by_text("ANDY_SPEECH_COMMAND", exact=True))
        expect(row).to_contain_text("speak …")
        assert "hunter2" not in page.content()
        assert_accessible(page)
    finally:
        (andy.home / ".env").unlink()


def test_the_doctor_looks_around_in_the_background_and_once_at_a_time(
    visitor: Visit, andy: AndyProcess
) -> None:
    page = visitor.page
    page.goto(f"{andy.address}/console/care/doctor")
    expect(page.get_by_text("has not looked around")).to_be_visible()
    page.get_by_role("button", name="Look now").click()
    # The checks may be through before anybody has looked: only the end is sure to be seen.
    looked = page.get_by_text("Looked")
    expect(page.get_by_text("checks are done").or_(looked).first).to_be_visible()

    other = page.context.new_page()
    other.goto(f"{andy.address}/console/care")
    other.get_by_role("button", name="Look now").click()
    looks_already = other.get_by_text("looks around already")
    expect(looks_already.or_(other.get_by_text("Looked")).first).to_be_visible()
    expect(looked).to_be_visible()
    expect(page.get_by_role("cell", name="permissions", exact=True)).to_be_visible()
    expect(page.get_by_role("cell", name="whatsapp", exact=True)).to_be_visible()
    assert_accessible(page)
    other.close()


def at_a_lasting_port(andy: AndyProcess) -> None:
    """Have it listen where it listens now when it starts again."""
    port = andy.address.rpartition(":")[2]
    andy.terminate()
    andy.start_at(port)


def test_a_backup_from_elsewhere_is_restored_under_an_open_page_which_comes_back(
    visitor: Visit, andy: AndyProcess, tmp_path: Path
) -> None:
    visitor.allowed += ["ERR_", "Failed to fetch", "network error"]
    at_a_lasting_port(andy)
    pid = andy.pid
    andy.say("add milk to the shopping list")
    assert andy.cli("backup", str(tmp_path / "old (1).tar.gz")).returncode == 0
    assert andy.cli("groups", "register", "chess").returncode == 0
    andy.say("add bread to the shopping list")
    page = visitor.page
    page.goto(f"{andy.address}/console/care")
    page.get_by_label("File").set_input_files(tmp_path / "old (1).tar.gz")
    page.locator("summary", has_text="Upload a backup").click()
    page.get_by_role("button", name="Upload", exact=True).click()
    expect(page.get_by_text("old-1.tar.gz was uploaded")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="Messages")).to_contain_text("2")
    expect(page.get_by_text("Groups that would be gone: chess")).to_be_visible()
    assert_accessible(page)

    page.get_by_role("button", name="Restore and restart").click()
    restored = page.get_by_text("What was there before is in backups/before-restore-")
    # A fast restart is through before the banner is painted.
    expect(page.locator("[data-banner=away]:visible").or_(restored).first).to_be_visible(timeout=PATIENCE_MS)
    expect(restored).to_be_visible(timeout=PATIENCE_MS)
    assert "/console/care/restoring" in page.url
    assert_accessible(page)

    assert andy.pid == pid, "in the place of the process, so that whatever looks after it goes on"
    assert "bread" not in andy.say("show the shopping list")["reply"]
    told = [row["kind"] for row in andy.rows("SELECT kind FROM audit WHERE kind LIKE 'restore.%'")]
    assert told == ["restore.done"], "that it was asked for stands in the audit which was replaced"
    page.get_by_role("link", name="Back").click()
    expect(page.get_by_role("heading", name="The last restore")).to_be_visible()
    assert_accessible(page)

    row = page.get_by_role("row").filter(has_text="before-restore-")
    row.get_by_role("link", name="Look inside").click()
    expect(page.get_by_text("Groups that would be back: chess")).to_be_visible()
    page.get_by_role("button", name="Restore and restart").click()
    expect(page.get_by_text("files are back as they were")).to_be_visible(timeout=PATIENCE_MS)
    assert [row["kind"] for row in andy.rows("SELECT kind FROM audit WHERE kind = 'restore.asked'")]
    assert "bread" in andy.say("show the shopping list")["reply"]


def test_a_file_that_is_no_backup_is_refused(visitor: Visit, andy: AndyProcess, tmp_path: Path) -> None:
    visitor.allowed.append("422")
    (tmp_path / "cat.tar.gz").write_bytes(b"a picture of a cat")
    page = visitor.page
    page.goto(f"{andy.address}/console/care")
    page.get_by_label("File").set_input_files(tmp_path / "cat.tar.gz")
    page.locator("summary", has_text="Upload a backup").click()
    page.get_by_role("button", name="Upload", exact=True).click()
    expect(page.get_by_text("That is no backup")).to_be_visible()
    assert not list((andy.home / "backups").glob("*cat*"))


def test_no_other_file_can_be_fetched(visitor: Visit, andy: AndyProcess) -> None:
    (andy.home / "backups").mkdir(exist_ok=True)
    (andy.home / "backups" / "link.tar.gz").symlink_to(andy.home / "data" / "token")
    cookies = {one["name"]: one["value"] for one in visitor.page.context.cookies()}
    with httpx.Client(base_url=andy.address, cookies=cookies, trust_env=False) as http:
        for name in ("link.tar.gz", "..%2Fdata%2Ftoken", "missing.tar.gz"):
            assert http.get(f"/console/care/backups/{name}").status_code == 404, name
