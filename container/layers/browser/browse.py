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
"""Most characters of a page's text that are printed."""
SECONDS = 90
"""Seconds that a page may take in all, and the proxy to be reached."""
NOWHERE = "http://127.0.0.1:9"
"""An address where nothing answers, for services that are not to be called."""
OF_ITS_MAKER = ("gaia", "google-apis", "google-base")
"""Names of services that Chromium calls whatever its policy says; the proxy would refuse and log them."""
ERROR_PAGE = re.compile(r'<body[^>]* class="(?:neterror|ssl)\b')
"""Matches the page that Chromium shows in place of one that it could not open."""
ERROR_CODE = re.compile(r"ERR_[A-Z0-9_]+")
MAX_HEAD_BYTES = 16_384
"""Bytes of a connection's beginning in which the end of its head is looked for."""


class PageReader(html.parser.HTMLParser):
    """Collects the text that a page shows, and the addresses of its links."""

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
        """The number of open elements whose text is skipped."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a line at a block, record a link, and skip the text of elements such as scripts."""
        if tag in self.SKIPPED:
            self._skipped += 1
        if tag in self.BLOCKS:
            self.words.append("\n")
        address = dict(attrs).get("href")
        if tag == "a" and address:
            self.links.append(address)

    def handle_endtag(self, tag: str) -> None:
        """End the line of a block, or the skipping of an element's text."""
        if tag in self.SKIPPED and self._skipped:  # a page may close what it has not opened
            self._skipped -= 1
        if tag in self.BLOCKS:
            self.words.append("\n")

    def handle_data(self, data: str) -> None:
        """Add a piece of text, unless it is in an element that is skipped."""
        if not self._skipped:
            self.words.append(data)

    def text(self) -> str:
        """Return the text of the page, a line for each block that has any; at most `MAX_CHARS` characters."""
        lines = (" ".join(line.split()) for line in "".join(self.words).splitlines())
        return "\n".join(line for line in lines if line)[:MAX_CHARS]


def local_proxy(refused: list[str]) -> str | None:
    """Start a proxy on loopback in front of the group's proxy, and return its address; None without one.

    It adds the name and password for the group's proxy, which Chromium takes from no setting. Each
    `host:port` that the group's proxy refuses is appended to `refused`.
    """
    outer = urllib.parse.urlsplit(os.environ.get("HTTPS_PROXY", ""))
    if not outer.hostname or not outer.port:
        return None
    proof = base64.b64encode(f"{outer.username}:{outer.password}".encode()).decode()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        """Accept connections of Chromium for ever, each in a thread of its own."""
        while True:
            client, _ = listener.accept()
            threading.Thread(target=carry, args=(client,), name="tunnel", daemon=True).start()

    def carry(client: socket.socket) -> None:
        """Pass one connection on to the group's proxy, with the name and password in its head."""
        head = b""
        while b"\r\n\r\n" not in head and len(head) < MAX_HEAD_BYTES:
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
            # The first line is `CONNECT host:port HTTP/1.1`.
            refused.append(first.split()[1].decode("latin-1"))
        back = threading.Thread(target=pump, args=(way_out, client), name="back", daemon=True)
        back.start()
        pump(client, way_out)
        back.join()
        for connection in (client, way_out):
            connection.close()

    threading.Thread(target=serve, name="proxy", daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes from one connection to another until the source ends or either breaks."""
    try:
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def run(url: str, *flags: str, wait: int) -> str:
    """Open a page in Chromium and return its HTML, after `wait` seconds of the page's time.

    `flags` are further options of Chromium, such as for a picture. Exits the program with the reason if the
    page cannot be opened. Places of the page that the group's proxy refused are printed to stderr.
    """
    refused: list[str] = []
    proxy = local_proxy(refused)
    with tempfile.TemporaryDirectory(prefix="browser-") as profile:
        command = [
            "chromium", "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            # The container is the fence: it gives no process the means that Chromium's own would need.
            "--no-sandbox",
            "--no-first-run", "--disable-extensions", "--disable-background-networking",
            "--disable-component-update", "--disable-default-apps", "--disable-domain-reliability",
            "--disable-sync", "--no-pings", *(f"--{service}-url={NOWHERE}" for service in OF_ITS_MAKER),
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
    """Return the sentence that says why a page was not opened.

    `page` is the HTML that Chromium shows in its place; `refused` are the places that the proxy refused.
    """
    parts = urllib.parse.urlsplit(url)
    place = f"{parts.hostname}:{parts.port or 443}"
    if place in refused:
        return f"{place} is not on the list of places that this group reaches: its owner can put it there."
    code = ERROR_CODE.search(page)
    return f"{url} cannot be opened: {code[0] if code else 'Chromium does not say why'}."


def main() -> None:
    """Carry out the command line: print a page's text or links, or make a picture or a PDF of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("text", "links", "shot", "pdf"))
    parser.add_argument("url")
    parser.add_argument("file", nargs="?")
    parser.add_argument("--wait", type=int, default=2)
    arguments = parser.parse_args()
    scheme = urllib.parse.urlsplit(arguments.url).scheme
    # The group's proxy passes on only https.
    if scheme not in ({"https"} if os.environ.get("HTTPS_PROXY") else {"http", "https"}):
        parser.error("the address has to begin with https://")
    wait = max(1, min(arguments.wait, 60))
    if arguments.what in {"shot", "pdf"}:
        if not arguments.file:
            parser.error(f"browse {arguments.what} URL FILE")
        target = Path(arguments.file).absolute()
        flag = "--screenshot" if arguments.what == "shot" else "--print-to-pdf"
        run(arguments.url, f"{flag}={target}", "--no-pdf-header-footer", wait=wait)
        if not target.is_file():
            sys.exit("Nothing was made of it.")
        print(f"{arguments.file}: {target.stat().st_size:,} bytes")
        return
    reader = PageReader()
    reader.feed(run(arguments.url, wait=wait))
    print(reader.text() if arguments.what == "text" else "\n".join(dict.fromkeys(reader.links)))


if __name__ == "__main__":
    main()
