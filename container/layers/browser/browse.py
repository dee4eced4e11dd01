#!/usr/bin/env python3
"""Open a page in Chromium and print its text or links, or make a picture or a PDF of it.

browse text|links URL, browse shot URL FILE.png, browse pdf URL FILE.pdf [--wait SECONDS]
"""

from __future__ import annotations

import argparse
import base64
import html.parser
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path

MAX_CHARS = 60_000
SECONDS = 90
NOWHERE = "http://127.0.0.1:9"
OF_ITS_MAKER = ("gaia", "google-apis", "google-base")
"""Addresses that Chromium asks whatever its policy says, which the proxy would refuse and write down."""
ERROR_PAGE = re.compile(r'<body[^>]* class="(?:neterror|ssl)\b')
"""Of Chromium's own, in place of a page that it could not open."""
ERROR_CODE = re.compile(r"ERR_[A-Z0-9_]+")


class PageReader(html.parser.HTMLParser):
    """Collects what is read on a page, and its links."""

    SKIPPED = frozenset({"script", "style", "noscript", "template", "svg", "head"})
    BLOCKS = frozenset(
        (
            "p",
            "div",
            "br",
            "li",
            "tr",
            "td",
            "th",
            "h1",
            "h2",
            "h3",
            "h4",
            "section",
            "article",
            "header",
            "footer",
        )
    )

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipped += tag in self.SKIPPED
        if tag in self.BLOCKS:
            self.words.append("\n")
        address = dict(attrs).get("href")
        if tag == "a" and address:
            self.links.append(address)

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in self.SKIPPED and self._skipped > 0
        if tag in self.BLOCKS:
            self.words.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.words.append(data)

    def text(self) -> str:
        """Return the words, a line for each block that has any."""
        lines = (" ".join(line.split()) for line in "".join(self.words).splitlines())
        return "\n".join(line for line in lines if line)[:MAX_CHARS]


def local_proxy(refused: list[str]) -> str | None:
    """Return the address of a proxy on loopback that adds the proof, which Chromium takes from no setting.

    `refused` gets each place that the group's proxy refuses; None without such a proxy.
    """
    outer = urllib.parse.urlsplit(os.environ.get("HTTPS_PROXY", ""))
    if not outer.hostname or not outer.port:
        return None
    proof = base64.b64encode(f"{outer.username}:{outer.password}".encode()).decode()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=carry, args=(client,), name="tunnel", daemon=True).start()

    def carry(client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head and len(head) < 16_384:
            more = client.recv(4096)
            if not more:
                return
            head += more
        first, _, rest = head.partition(b"\r\n")
        try:
            way_out = socket.create_connection((outer.hostname, outer.port), timeout=SECONDS)
            way_out.sendall(first + f"\r\nProxy-Authorization: Basic {proof}\r\n".encode() + rest)
            answer = way_out.recv(65_536)
            client.sendall(answer)
        except OSError:
            client.close()
            return
        if b" 403 " in answer.partition(b"\r\n")[0]:
            refused.append(first.split()[1].decode("latin-1"))
        back = threading.Thread(target=pump, args=(way_out, client), name="back", daemon=True)
        back.start()
        pump(client, way_out)
        back.join()
        for line in (client, way_out):
            line.close()

    threading.Thread(target=serve, name="proxy", daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def pump(source: socket.socket, target: socket.socket) -> None:
    """Carry bytes until either end hangs up."""
    try:
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def run(url: str, *flags: str, wait: int) -> str:
    """Open a page in Chromium and return its markup. Exits with the reason when it cannot be opened."""
    refused: list[str] = []
    proxy = local_proxy(refused)
    with tempfile.TemporaryDirectory(prefix="browser-") as profile:
        command = [
            "chromium", "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            # The container is the fence: it gives no process the means that Chromium's own would need.
            "--no-sandbox",
            "--no-first-run", "--disable-extensions", "--disable-background-networking",
            "--disable-component-update", "--disable-default-apps", "--disable-domain-reliability",
            "--disable-sync", "--no-pings", *(f"--{what}-url={NOWHERE}" for what in OF_ITS_MAKER),
            f"--user-data-dir={profile}", f"--virtual-time-budget={wait * 1000}",
            "--window-size=1280,1600",
            *([f"--proxy-server={proxy}"] if proxy else []), "--dump-dom", *flags, url,
        ]  # fmt: skip
        environment = {**os.environ, "HOME": profile, "XDG_CONFIG_HOME": profile, "XDG_CACHE_HOME": profile}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            sys.exit(f"The page took more than {SECONDS} seconds.")
    if done.returncode != 0:
        sys.exit(f"Chromium failed: {done.stderr[-1000:]}")
    if ERROR_PAGE.search(done.stdout):
        sys.exit(why_not(url, done.stdout, refused))
    if refused:
        print(
            f"Not loaded, for it is not on this group's list: {', '.join(sorted(set(refused)))}",
            file=sys.stderr,
        )
    return done.stdout


def why_not(url: str, page: str, refused: list[str]) -> str:
    """Say why a page was not opened, by the page that Chromium shows in its place."""
    parts = urllib.parse.urlsplit(url)
    place = f"{parts.hostname}:{parts.port or 443}"
    if place in refused:
        return f"{place} is not on the list of places that this group reaches: its owner can put it there."
    code = ERROR_CODE.search(page)
    return f"{url} cannot be opened: {code[0] if code else 'Chromium does not say why'}."


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("text", "links", "shot", "pdf"))
    parser.add_argument("url")
    parser.add_argument("file", nargs="?")
    parser.add_argument("--wait", type=int, default=2)
    given = parser.parse_args()
    scheme = urllib.parse.urlsplit(given.url).scheme
    if scheme not in ({"https"} if os.environ.get("HTTPS_PROXY") else {"http", "https"}):
        parser.error("the address has to begin with https://")
    wait = max(1, min(given.wait, 60))
    if given.what in {"shot", "pdf"}:
        if not given.file:
            parser.error(f"browse {given.what} URL FILE")
        target = Path(given.file).absolute()
        flag = "--screenshot" if given.what == "shot" else "--print-to-pdf"
        run(given.url, f"{flag}={target}", "--no-pdf-header-footer", wait=wait)
        if not target.is_file():
            sys.exit("Nothing was made of it.")
        print(f"{given.file}: {target.stat().st_size:,} bytes")
        return
    reader = PageReader()
    reader.feed(run(given.url, wait=wait))
    print(reader.text() if given.what == "text" else "\n".join(dict.fromkeys(reader.links)))


if __name__ == "__main__":
    main()
