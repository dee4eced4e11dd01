"""The console has a name of its own, so that no other server of this machine receives its cookie."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.signed_in import Visit, assert_accessible
from tests.processes.andy import AndyProcess

COOKIE = "andy_session"


class Neighbour:
    """Another server of this machine: it records the cookies that it receives and serves one page."""

    def __init__(self) -> None:
        self.cookies: list[str] = []
        self.page = "nothing"
        neighbour = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                neighbour.cookies.append(self.headers.get("Cookie", ""))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(neighbour.page.encode())

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = False

            def process_request(self, request: Any, client_address: Any) -> None:
                neighbour.connections.append(request)
                super().process_request(request, client_address)

        self.connections: list[socket.socket] = []
        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port

    def close(self) -> None:
        """Stop, and end the connections that a browser opened ahead of a request."""
        self.server.shutdown()
        for one in self.connections:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.server.server_close()


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    made = Neighbour()
    thread = threading.Thread(target=made.server.serve_forever, name="neighbour")
    thread.start()
    yield made
    made.close()
    thread.join()


def sign_in(andy: AndyProcess, agent: str) -> httpx.Client:
    """Return a client that signed in at 127.0.0.1 as a browser that calls itself `agent`."""
    client = httpx.Client(base_url=andy.address, headers={"User-Agent": agent}, trust_env=False)
    token = (andy.home / "data" / "token").read_text()
    assert client.post("/console/sign-in", data={"secret": token}).status_code == 303
    return client


def forget(visitor: Visit, neighbour: Neighbour) -> None:
    """Leave out of a visit's requests what was meant for the other server."""
    visitor.requests = [one for one in visitor.requests if f":{neighbour.port}/" not in one]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_another_server_of_this_machine_receives_no_cookie_of_the_console(
    visitor: Visit, neighbour: Neighbour, context: BrowserContext, name: str
):
    other = context.new_page()
    other.goto(f"http://{name}:{neighbour.port}/")
    assert neighbour.cookies, "the other server was asked"
    assert [one for one in neighbour.cookies if COOKIE in one] == []
    assert [one["domain"] for one in context.cookies() if one["name"] == COOKIE] == ["andy.localhost"]
    forget(visitor, neighbour)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_old_addresses_lead_to_the_consoles_own_name(visitor: Visit, andy: AndyProcess, name: str):
    port = andy.address.rpartition(":")[2]
    visitor.page.goto(f"http://{name}:{port}/console/costs?by=day")
    assert visitor.page.url == f"http://andy.localhost:{port}/console/costs?by=day"
    expect(visitor.page.get_by_role("heading", name="Costs", exact=True)).to_be_visible()


def test_a_session_of_the_old_address_is_over_once_its_browser_is_led_to_the_new_one(andy: AndyProcess):
    with closing(sign_in(andy, "Safari/605")) as client:
        name = client.cookies[COOKIE].partition(".")[0]
        assert client.get("/console/now").status_code == 200, "a browser that cannot resolve the name stays"
        led = client.get("/console/now", headers={"User-Agent": "Chrome/120 Safari/537"})
        assert (led.status_code, led.headers["location"].split("/")[2].split(":")[0]) == (
            307,
            "andy.localhost",
        )
        assert COOKIE not in client.cookies
    assert name not in [one["id"] for one in andy.listed("sessions", "list")]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_browser_that_signs_in_at_the_old_address_receives_no_cookie_there(
    andy: AndyProcess, name: str
) -> None:
    port = andy.address.rpartition(":")[2]
    token = (andy.home / "data" / "token").read_text()
    with httpx.Client(headers={"User-Agent": "Chrome/120 Safari/537"}, trust_env=False) as client:
        led = client.post(f"http://{name}:{port}/console/sign-in?next=/console/costs", data={"secret": token})
        assert led.status_code == 303
        assert led.headers["location"] == f"http://andy.localhost:{port}/console/sign-in?next=/console/costs"
        assert "set-cookie" not in led.headers


def test_a_stolen_cookie_is_shown_and_is_useless_after_the_sign_out(
    page: Page, andy: AndyProcess, context: BrowserContext
):
    (cookie,) = [one["value"] for one in context.cookies() if one["name"] == COOKIE]
    stolen = {"Cookie": f"{COOKIE}={cookie}", "User-Agent": "thief/1"}
    with httpx.Client(base_url=andy.address, headers=stolen, trust_env=False) as thief:
        assert thief.get("/console/care").status_code == 200
        (session,) = [one for one in andy.listed("sessions", "list") if cookie.startswith(one["id"])]
        assert session["browser"].startswith("Chrome")
        assert session["browser"].endswith("also thief/1")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert thief.get("/console/care").status_code == 303
        assert thief.get("/api/status").status_code == 401


@pytest.mark.parametrize("name", ["127.0.0.1", "andy.localhost"])
def test_a_link_of_another_page_leads_to_a_page_that_opens_andy(
    visitor: Visit, andy: AndyProcess, neighbour: Neighbour, name: str
):
    visitor.allowed += ["403", "favicon"]
    port = andy.address.rpartition(":")[2]
    neighbour.page = f"<a href='http://{name}:{port}/console/costs?by=day'>Andy</a>"
    page = visitor.page
    page.goto(f"http://127.0.0.1:{neighbour.port}/")
    page.get_by_role("link", name="Andy").click()
    opening = page.get_by_role("link", name="Open Andy")
    expect(opening).to_be_visible()
    assert_accessible(page)
    opening.click()
    expect(page.get_by_role("heading", name="Costs", exact=True)).to_be_visible()
    assert page.url == f"http://andy.localhost:{port}/console/costs?by=day"
    forget(visitor, neighbour)


def test_nobody_else_answers_for_the_name_on_the_other_loopback_address(andy: AndyProcess):
    port = int(andy.address.rpartition(":")[2])
    with socket.socket(socket.AF_INET6) as taken, pytest.raises(OSError, match="in use"):
        taken.bind(("::1", port))
