"""An agent image that trusts a certificate authority of the tests.

A web server on loopback has a certificate that this authority signed.
"""

from __future__ import annotations

import io
import secrets
import ssl
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import docker

from tests.doubles.messages_api import ScriptedMessagesApi
from tests.processes.andy import AndyProcess

NAME = "good.example"
PAGE = b"""<!doctype html><title>Opening times</title><h1>Open from 9 to 5</h1>
<script>document.body.append("also on Sunday")</script>
<img src="https://elsewhere.example/picture.png"><a href="/times">all times</a>"""
PROGRAM = Path(__file__).parents[1] / "processes" / "andy_in_small_internet.py"
POLICY = Path(__file__).parents[2] / "container" / "layers" / "browser" / "policy.py"
DOCKERFILE = """
FROM {image}
USER root
COPY authority.crt /usr/local/share/ca-certificates/tests.crt
COPY policy.py /tmp/policy.py
RUN update-ca-certificates >/dev/null && python3 /tmp/policy.py && rm /tmp/policy.py
USER andy
"""


@dataclass(frozen=True, slots=True)
class Certificates:
    """The authority, and the server's key and certificate that it has signed."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "authority.crt"

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        ext = folder / "extensions"
        ext.write_text(f"subjectAltName=DNS:{NAME}\n")
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout"]
        for command in (
            ["req", "-x509", *key, "authority.key", "-out", "authority.crt", "-days", "7",
             "-subj", "/CN=Tests", "-addext", "basicConstraints=critical,CA:TRUE"],
            ["req", *key, "server.key", "-out", "server.csr", "-subj", f"/CN={NAME}"],
            ["x509", "-req", "-in", "server.csr", "-CA", "authority.crt", "-CAkey", "authority.key",
             "-CAcreateserial", "-out", "server.crt", "-days", "7", "-extfile", ext.name],
        ):  # fmt: skip
            subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
        return cls(folder)

    @contextmanager
    def serving(self) -> Iterator[int]:
        """Serve `PAGE` over TLS on loopback; yields the port."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.crt", self.folder / "server.key")
        with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, name="page-over-tls")
            thread.start()
            try:
                yield server.server_port
            finally:
                server.shutdown()
                thread.join()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def trusting(client: docker.APIClient, image: str, certificates: Certificates, *, tag: str) -> Iterator[str]:
    """Build an image of another that trusts the authority, labels and all; it is removed at the end."""
    files = {
        "Dockerfile": DOCKERFILE.format(image=image).encode(),
        "authority.crt": certificates.authority.read_bytes(),
        "policy.py": POLICY.read_bytes(),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
    packed.seek(0)
    events = client.build(fileobj=packed, custom_context=True, tag=tag, rm=True, forcerm=True, decode=True)
    said = "".join(str(event.get("stream") or event.get("error") or "") for event in events)
    assert "Successfully built" in said, said
    try:
        yield tag
    finally:
        client.remove_image(tag, force=True)


@contextmanager
def andy_in_a_small_internet(
    folder: Path, client: docker.APIClient, image: str, api: ScriptedMessagesApi
) -> Iterator[AndyProcess]:
    """Start Andy with agents of `image`, for whom the web is the one page of `Certificates.serving`."""
    (folder / "tls").mkdir()
    certificates = Certificates.make(folder / "tls")
    # Of this test alone: another one would take the image away, or put its own authority in.
    trusted = f"andy-agent-test:trusting-{secrets.token_hex(6)}"
    with trusting(client, image, certificates, tag=trusted) as tag, certificates.serving() as port:
        environment = {
            "ANTHROPIC_API_KEY": "sk-ant-api03-key",
            "ANTHROPIC_BASE_URL": api.url,
            "ANDY_IMAGE": tag,
            "INTERNET_PORT": str(port),
        }
        andy = AndyProcess(folder / "home", runtime="docker", agent="auto", environment=environment)
        andy.program = [sys.executable, str(PROGRAM)]
        with andy:
            yield andy
