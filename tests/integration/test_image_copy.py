"""How a node gets an image: blocks from the host's server, checked, into the engine's own load."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_runner import image_copy
from tests.support.until import wait_until


class Engine(socketserver.ThreadingUnixStreamServer):
    """Takes what is loaded, and has the image `sha256:new` once that was whole."""

    daemon_threads = True
    loaded = b""
    has_it = True
    said = b'{"stream": "no space left"}'


class EngineRequest(http.server.BaseHTTPRequestHandler):
    server: Engine

    def do_POST(self) -> None:
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        self.server.loaded = data
        self._answer(200, self.server.said)

    def do_GET(self) -> None:
        assert self.path == "/images/sha256:new/json"
        self._answer(200 if self.server.has_it else 404, b"{}")

    def _answer(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "here"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine(tmp_path, monkeypatch) -> Iterator[Engine]:
    monkeypatch.setattr(image_copy, "SOCKET", str(tmp_path / "s"))
    monkeypatch.setattr(image_copy, "TRIES", 1)
    monkeypatch.setenv("NODE", "n1")
    with Engine(str(tmp_path / "s"), EngineRequest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def archive(tmp_path, monkeypatch) -> Iterator[tuple[str, bytes]]:
    monkeypatch.setattr(image_copy, "BLOCK_BYTES", 1_000)
    data = os.urandom(2_500)
    (tmp_path / "image.tar").write_bytes(data)
    with image_copy.BlockServer(Path(tmp_path / "image.tar"), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", data
        server.shutdown()


def hashes_of(data: bytes) -> str:
    return json.dumps(
        [hashlib.sha256(data[at : at + 1_000]).hexdigest() for at in range(0, len(data), 1_000)]
    )


def test_an_image_is_loaded_whole_and_each_block_is_told(engine, archive, capsys):
    address, data = archive
    assert image_copy.main(["load", address, "sha256:new", hashes_of(data)]) == 0
    assert engine.loaded == data
    # Each line is written by the thread of its request, which may come to it only after the next one.
    lines: list[str] = []

    def are_all_written() -> bool:
        lines.extend(capsys.readouterr().out.splitlines())
        return len(lines) >= 3

    wait_until(are_all_written, what="a line for each block")
    assert sorted(lines) == ["block n1 0", "block n1 1", "block n1 2"]


def test_a_block_that_is_not_as_announced_is_not_loaded(engine, archive, capsys):
    address, data = archive
    wrong = hashes_of(data[:1_000] + b"x" + data[1_001:])
    assert image_copy.main(["load", address, "sha256:new", wrong]) == 1
    assert engine.loaded == b""
    assert "failed n1 OSError: block 1 is not as announced" in capsys.readouterr().out


def test_an_engine_that_has_not_the_image_afterwards_is_told(engine, archive, capsys):
    address, data = archive
    engine.has_it = False
    assert image_copy.main(["load", address, "sha256:new", hashes_of(data)]) == 1
    assert "did not load it" in capsys.readouterr().out


def test_a_reason_of_several_lines_is_one_line_of_the_log(engine, archive, capsys):
    address, data = archive
    engine.has_it = False
    engine.said = b'{"status":"Loading"}\r\n{"error":"no space left"}\r\n\xe2\x80\xa8block n1 x'
    assert image_copy.main(["load", address, "sha256:new", hashes_of(data)]) == 1
    (failed,) = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("block n1 ")]
    assert failed.endswith('{"status":"Loading"} {"error":"no space left"} block n1 x')
