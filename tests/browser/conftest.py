"""The console as people use it: a real Chromium on a real `andy up`, without a key and without a phone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.signed_in import Visit, visit
from tests.processes.andy import AndyProcess

PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, for one module: its event loop must not outlive the module's tests."""
    path = os.environ.get("ANDY_CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium fonts-noto-cjk)")
    with sync_playwright() as playwright:
        # As root, Chromium has no sandbox of its own; only pages of this host are opened.
        # A shared worker does not know what its page was told of certificates.
        options = ["--ignore-certificate-errors"]
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=False, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def andy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AndyProcess]:
    """One host a module, whose agent needs no model; groups are for a test to make."""
    with AndyProcess(tmp_path_factory.mktemp("browser") / "home") as host:
        yield host


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    made = chromium.new_context(locale="en-US", viewport={"width": 1280, "height": 900})
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


@pytest.fixture
def visitor(context: BrowserContext, andy: AndyProcess) -> Iterator[Visit]:
    """A signed-in page that notes what it asks for; at its end nothing foreign was asked, nothing failed."""
    with visit(context, andy) as made:
        yield made


@pytest.fixture
def page(visitor: Visit) -> Page:
    return visitor.page
