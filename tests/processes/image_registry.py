"""A real registry of images on this machine, where Debian's `docker-registry` is installed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes.andy import until

PROGRAM = "docker-registry"


def is_installed() -> bool:
    """Whether a registry can be started."""
    return shutil.which(PROGRAM) is not None


@contextmanager
def image_registry(root: Path, address: str = "127.0.0.1") -> Iterator[str]:
    """Start an empty registry over plain HTTP, and give its `host:port`."""
    with socket.create_server((address, 0)) as free:
        port = free.getsockname()[1]
    config = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(root / "registry")}},
        "http": {"addr": f"{address}:{port}"},
    }
    (root / "registry.yml").write_text(json.dumps(config))
    with (root / "registry.log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, "serve", str(root / "registry.yml")], stdout=log, stderr=log)
    try:
        until(lambda: _answers(address, port), what="the registry answers")
        yield f"{address}:{port}"
    finally:
        process.terminate()
        process.wait()


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True
