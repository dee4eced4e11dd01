"""Backups are made, checked and fetched in the browser, and Andy is looked after."""

from __future__ import annotations

import io
import tarfile

from playwright.sync_api import expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess


def test_a_backup_is_made_checked_and_fetched_and_a_broken_one_is_known(
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

    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("can be restored")).to_be_visible()

    made.write_bytes(made.read_bytes()[:-2_000])
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("cannot be restored")).to_be_visible()
    assert [path.name for path in (andy.home / "backups").iterdir()] == [made.name], (
        "nothing is left of checks"
    )


def test_no_other_file_can_be_fetched(visitor: Visit, andy: AndyProcess) -> None:
    (andy.home / "backups").mkdir(exist_ok=True)
    (andy.home / "backups" / "link.tar.gz").symlink_to(andy.home / "data" / "token")
    for name in ("link.tar.gz", "..%2Fdata%2Ftoken", "missing.tar.gz"):
        assert visitor.page.request.get(f"{andy.address}/console/care/backups/{name}").status == 404, name


def test_the_doctor_and_the_settings_are_shown(visitor: Visit, andy: AndyProcess) -> None:
    page = visitor.page
    page.goto(f"{andy.address}/console/care")
    expect(page.get_by_role("cell", name="MAX_CONCURRENT_CONTAINERS")).to_be_visible()
    page.get_by_role("link", name="Look now").click()
    expect(page.get_by_role("heading", name="What the doctor found")).to_be_visible()
    expect(page.get_by_role("cell", name="store", exact=True)).to_be_visible()
    assert_accessible(page)
