"""Serve an image archive (`serve FILE PORT`), and load it on a node (`load ADDRESS IMAGE HASHES`).

`andy nodes load-image` hands this text to Python on the nodes, in whatever image they have: it needs the
standard library alone. What is loaded is checked block by block against the hashes that came with the order.
"""

from __future__ import annotations

import hashlib
import http.client
import http.server
import json
import os
import socket
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

BLOCK_BYTES = 8 * 1024 * 1024
"""Bytes of a block of the archive; only the last may be shorter."""
SOCKET = "/var/run/docker.sock"
TRIES = 30
"""Times that a block is requested, a second apart."""
CALL_SECONDS = 600
"""Seconds that the engine may take for one step of its answer."""


class BlockServer(http.server.ThreadingHTTPServer):
    """Serves `/NUMBER/NODE`, one block of a file, and prints `block NODE NUMBER` for each that was sent.

    What a node asks under `/failed/NODE?REASON` is printed as `failed NODE REASON`, on one line.
    """

    daemon_threads = True

    def __init__(self, path: Path, port: int) -> None:
        """`path` is the archive that is served on this port of all addresses."""
        super().__init__(("", port), _BlockRequest)
        self.path = path


class _BlockRequest(http.server.BaseHTTPRequestHandler):
    server: BlockServer

    def do_GET(self) -> None:
        """Send the block of `/NUMBER/NODE` and print its number; print the failure of `/failed/NODE?TEXT`."""
        request = urllib.parse.urlsplit(self.path)
        block, _, node = request.path.strip("/").partition("/")
        if block == "failed":
            # The host reads this log line by line.
            reason = " ".join(urllib.parse.unquote(request.query).split())
            _print_line("failed", node, reason[:500])
            data = b""
        else:
            with self.server.path.open("rb") as file:
                file.seek(int(block) * BLOCK_BYTES)
                data = file.read(BLOCK_BYTES)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        if block != "failed":
            _print_line("block", node, block)

    def log_message(self, *_: object) -> None:
        """Print no line for each request: the host would read it."""


def _print_line(*words: str) -> None:
    """Write a line for the host, which reads this container's log."""
    sys.stdout.write(f"{' '.join(words)}\n")
    sys.stdout.flush()


class EngineConnection(http.client.HTTPConnection):
    """HTTP to the engine of the node."""

    def connect(self) -> None:
        """Connect to the engine's socket instead of a network address."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CALL_SECONDS)
        self.sock.connect(SOCKET)


def load(address: str, image: str, hashes: list[str], node: str) -> None:
    """Have this node's Docker engine load an image archive, and check that it has the image then.

    The archive is fetched from `address` in blocks, whose SHA-256 hashes are `hashes`. `node` is the id of
    this node, by which the server reports each block. Raises `OSError` or `HTTPException`.
    """
    with closing(EngineConnection("engine")) as engine:
        engine.request(
            "POST",
            "/images/load?quiet=1",
            body=blocks(address, hashes, node),
            headers={"Content-Type": "application/x-tar", "Transfer-Encoding": "chunked"},
            encode_chunked=True,
        )
        engine_answer = engine.getresponse().read().decode("utf-8", "replace")
    # The engine reports a fault of the archive inside a successful answer, so the image itself is looked for.
    with closing(EngineConnection("engine")) as engine:
        engine.request("GET", f"/images/{image}/json")
        has_image = engine.getresponse().status == 200
    if not has_image:
        raise OSError(f"the node's engine did not load it: {engine_answer.strip()[-300:]}")


def blocks(address: str, hashes: list[str], node: str) -> Iterator[bytes]:
    """Yield the archive block by block, fetched from the server at `address`.

    `hashes` has the SHA-256 hash of each block; `node` is the id of this node, for the server's report.
    Raises `OSError` for a block with another hash, and what `_block` raises.
    """
    for number, announced_hash in enumerate(hashes):
        data = _block(f"http://{address}/{number}/{node}")
        if hashlib.sha256(data).hexdigest() != announced_hash:
            raise OSError(f"block {number} is not as announced")
        yield data


def _block(url: str) -> bytes:
    """Return the body of the server's answer for a URL, after up to `TRIES` attempts.

    Raises `OSError` or `HTTPException` if all have failed.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310  # the host's own server
                return bytes(answer.read())
        except (OSError, http.client.HTTPException):
            if not tries_left:
                raise
            time.sleep(1)  # the server may only be starting, and a network of Swarm takes a moment
    raise AssertionError


def main(arguments: list[str]) -> int:
    """Run the command `serve FILE PORT`, which never ends, or `load ADDRESS IMAGE HASHES`.

    `HASHES` is a JSON list. Return the exit code; a failure is also reported to the server.
    """
    if arguments[0] == "serve":
        BlockServer(Path(arguments[1]), int(arguments[2])).serve_forever()
    address, image, hashes = arguments[1:]
    node = os.environ["NODE"]
    try:
        load(address, image, json.loads(hashes), node)
    except (OSError, http.client.HTTPException) as error:
        reason = urllib.parse.quote(f"{type(error).__name__}: {error}")
        # Called for its effect: the server prints the reason, which the host reads.
        _block(f"http://{address}/failed/{node}?{reason}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
