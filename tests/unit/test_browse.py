"""The program of the browser's layer: what it reads off a page, and how Chromium gets through the proxy."""

from __future__ import annotations

import importlib.util
import socket
import threading
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[2] / "container" / "layers" / "browser" / "browse.py"

pytestmark = pytest.mark.leaves("the program's proxy, which ends with the program")


@pytest.fixture(scope="module")
def browse() -> ModuleType:
    spec = importlib.util.spec_from_file_location("browse", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_is_read_as_a_person_would(browse: ModuleType) -> None:
    reader = browse.PageReader()
    reader.feed(
        "<head><title>t</title></head><h1>Open</h1><a href='/times'>times</a><script>if (a < b) x()</script>"
        "<p>from   9 <b>to</b> 5</p><style>p {}</style>&amp; Sunday"
    )
    assert reader.text() == "Open\ntimes\nfrom 9 to 5\n& Sunday"
    assert reader.links == ["/times"]


def test_without_a_proxy_there_is_none(browse: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    assert browse.local_proxy([]) is None


def test_the_proof_of_the_run_is_added_on_the_way(
    browse: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as outer:

        def answer() -> None:
            line, _ = outer.accept()
            with line:
                heads.append(line.recv(4096))
                line.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")

        answering = threading.Thread(target=answer, name="outer")
        answering.start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://run:token@127.0.0.1:{outer.getsockname()[1]}")
        inner = browse.local_proxy(refused := []).rpartition(":")[2]
        with socket.create_connection(("127.0.0.1", int(inner)), timeout=60) as line:
            line.sendall(b"CONNECT good.example:443 HTTP/1.1\r\nHost: good.example:443\r\n\r\n")
            came = b""
            while not came.endswith(b"hello"):
                came += line.recv(4096)
        answering.join()
    assert refused == []
    assert heads[0].startswith(
        b"CONNECT good.example:443 HTTP/1.1\r\nProxy-Authorization: Basic cnVuOnRva2Vu\r\n"
    )


def test_a_page_of_errors_is_no_page_and_says_why(browse: ModuleType) -> None:
    failed = (
        '<html dir="ltr"><body class="neterror" style="x"><div>{"errorCode":"ERR_NAME_NOT_RESOLVED"}</div>'
    )
    assert browse.ERROR_PAGE.search(failed)
    assert browse.ERROR_PAGE.search('<body id="body" class="ssl">net::ERR_CERT_AUTHORITY_INVALID')
    assert not browse.ERROR_PAGE.search("<body><p class='neterror'>about the class neterror</p>")
    url = "https://good.example/deep"
    assert browse.why_not(url, failed, []) == f"{url} cannot be opened: ERR_NAME_NOT_RESOLVED."
    said = browse.why_not(url, failed, ["elsewhere.example:443", "good.example:443"])
    assert said.startswith("good.example:443 is not on the list of places that this group reaches")
