"""Make the pictures of `docs/console.md`: `make pictures`. Needs Chromium.

It starts an Andy of its own without a key and a phone, writes to it as a family would, and takes a picture of
every page: on a desk in the light, and of two of them on a phone in the dark.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, sync_playwright

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from orchestrator.home.directory import Home  # noqa: E402 - this file is also run as a program
from orchestrator.web.console.app import find_pages  # noqa: E402

FOLDER = DOCS / "console"
TALK = (
    ("family", "Mia", "Shall we go to the lake on Saturday?"),
    ("family", "Jon", "@Andy what's on tomorrow?"),
    ("family", "Mia", "@Andy add milk, eggs and *two* lemons to the shopping list"),
    ("family", "Jon", "@Andy remind us tomorrow at 9am to pack the tent"),
    ("family", "Mia", "@Andy add a task book the camping site by Friday"),
    ("main", "you", "remind me every Monday at 9am to take out the bins"),
    ("main", "you", "add a task write the yearly report by 10 Feb"),
    ("main", "you", "remember for next time: the code of the shed is 42"),
)
MODELS = (
    ("add", "local", "--kind", "llama.cpp", "--model", "qwen3", "--window", "32768"),
    ("add", "deepseek", "--model", "deepseek-chat", "--price", "0.3,1.2"),
    ("use", "local/qwen3", "--group", "family"),
    ("fallback", "local/qwen3", "deepseek/deepseek-chat"),
)
EXTRA = {
    "chats_group": "/chats/family",
    "chats_message": "/chats/family/messages/2",
    "groups_one": "/groups/family",
    "safety_audit": "/safety/audit",
}
ON_A_PHONE = ("now", "chats_group")


def main(only: tuple[str, ...] = (), folder: Path = FOLDER) -> None:
    """Start an Andy with some conversations, and write a PNG of each page of the console into `folder`.

    `only` names the pages of which to make a picture; empty for all.
    """
    path = shutil.which("chromium")
    if path is None:
        sys.exit("No chromium on PATH: apt-get install chromium fonts-noto-cjk")
    with tempfile.TemporaryDirectory() as root, _running(Home(Path(root))) as http:
        http.post("/groups", json={"folder": "family", "name": "Family"})
        for group, sender, text in TALK:
            http.post("/chat", json={"group": group, "text": text, "sender": sender, "wait": 60})
        for words in MODELS:
            _andy(Home(Path(root)), "models", *words).wait()
        (Path(root) / "backups").mkdir()
        _andy(Home(Path(root)), "backup", str(Path(root) / "backups" / "andy.tar.gz")).wait()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=False)
            _take(browser, http, only, folder)
            browser.close()


def _andy(home: Home, *words: str) -> subprocess.Popen[bytes]:
    """Start the command `andy` with these arguments for a home, and return its process."""
    command = [sys.executable, "-m", "orchestrator", *words, "--home", str(home.root)]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)


@contextmanager
def _running(home: Home) -> Iterator[httpx.Client]:
    """Run Andy in a home, yield a client of its HTTP API, and end it after the block."""
    host = _andy(home, "up", "--runtime", "process", "--agent", "offline", "--port", "0")
    try:
        while not home.address_file.exists():
            if host.poll() is not None:
                sys.exit("Andy did not start: see 'andy up'.")
            time.sleep(0.1)
        token, address = home.token(), home.address_file.read_text()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=address, headers=headers, timeout=120, trust_env=False) as http:
            yield http
    finally:
        host.terminate()
        host.wait()


def _take(browser: Browser, http: httpx.Client, only: tuple[str, ...], folder: Path) -> None:
    """Write a picture of each page into `folder`: on a desk in the light, some also on a phone in the dark.

    `only` names the pages of which to make a picture; empty for all.
    """
    address = str(http.base_url).rstrip("/")
    places = {page.name: page.path for page in find_pages()} | EXTRA
    # The page, the end of the file's name, width and height in pixels, and the colour scheme.
    shots = [(name, "", 1180, 800, "light") for name in places]
    shots += [(name, "-phone", 390, 844, "dark") for name in ON_A_PHONE]
    folder.mkdir(exist_ok=True, parents=True)
    for name, suffix, width, height, theme in shots:
        if only and name not in only:
            continue
        # A context of its own has no session yet: each one is opened with a code.
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(address + http.post("/sessions/codes").json()["path"])
        page.wait_for_url("**/console/now")
        page.goto(f"{address}/console{places[name]}")
        page.wait_for_selector("html[data-live=yes], main:not(:has(#live))")
        page.screenshot(path=folder / f"{name}{suffix}.png")
        context.close()


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
