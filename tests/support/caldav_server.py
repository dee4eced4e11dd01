"""Run Radicale, a CalDAV server, on loopback in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from radicale import Application, config

USER, PASSWORD = "ada", "correct horse"


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the library
        """Write nothing."""


@contextmanager
def caldav_server(root: Path, *, gives_files: bool = True) -> Iterator[str]:
    """Serve the calendars of `USER`, and give the address of the first, `/ada/work/`.

    Radicale gives a whole calendar to a plain GET. Without `gives_files` that is refused, as by others.
    """
    root.mkdir(parents=True, exist_ok=True)
    (root / "users").write_text(f"{USER}:{PASSWORD}\n")
    configuration = config.load()
    configuration.update(
        {
            "auth": {
                "type": "htpasswd",
                "htpasswd_filename": str(root / "users"),
                "htpasswd_encryption": "plain",
                "delay": "0",
            },
            "storage": {"filesystem_folder": str(root / "collections")},
            "logging": {"level": "critical"},
        },
        "test",
    )
    radicale = Application(configuration)

    def served(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET" and not gives_files:
            start_response("405 Method Not Allowed", [("Content-Type", "text/plain")])
            return [b"no"]
        return radicale(environ, start_response)

    with make_server("127.0.0.1", 0, served, WSGIServer, _Silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="radicale")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{USER}/work/"
        finally:
            server.shutdown()
            thread.join()
