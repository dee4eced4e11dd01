"""Connect to the host, verify its certificate, and send it the token of the run."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runner.wire.carrier import VERSION, CarrierConnection, CarrierMessage, ConnectionLost

CONNECT_SECONDS = 10.0
"""Seconds that opening a connection may take."""


class Refused(Exception):
    """The host refuses this run for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierOrder:
    """The address of the host, its certificate in PEM form, and the token of this run."""

    address: str
    port: int
    certificate: str
    token: str

    @classmethod
    def read(cls, path: Path) -> CarrierOrder:
        """Return the host's address and certificate and the run's token from a JSON file.

        Raises `OSError`, `ValueError`, and `TypeError` for fields that are missing or unknown.
        """
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    async def connect(self, **hello: Any) -> tuple[CarrierConnection, CarrierMessage]:
        """Connect to the host, send a hello with the token, and return the connection and the host's welcome.

        `hello` are the other fields of the hello. The host's certificate is verified.

        Raises:
            Refused, ConnectionLost, OSError, TimeoutError
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the pinned certificate identifies the host, whatever its name
        context.load_verify_locations(cadata=self.certificate)
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(self.address, self.port, ssl=context)
        connection = CarrierConnection(reader, writer)
        return connection, await greet(connection, token=self.token, **hello)


async def greet(connection: CarrierConnection, **hello: Any) -> CarrierMessage:
    """Send a hello with these fields and return the host's welcome. The connection is closed on an error.

    Raises:
        Refused, ConnectionLost
    """
    try:
        await connection.send("hello", v=VERSION, **hello)
        return _welcomed(await connection.receive())
    except BaseException:
        connection.close()
        raise


def _welcomed(answer: CarrierMessage) -> CarrierMessage:
    """Return the host's answer to a hello if it is a welcome.

    Raises `Refused` for a refusal, `ConnectionLost` for any other answer.
    """
    if answer.kind == "refused":
        raise Refused(answer.fields.get("reason"))
    if answer.kind != "welcome":
        raise ConnectionLost(f"'{answer.kind}' for a hello")
    return answer


def is_hardened() -> bool:
    """Return whether the kernel lets no program of this container gain privileges."""
    try:
        return "\nNoNewPrivs:\t1\n" in Path("/proc/self/status").read_text()
    except OSError:
        return False


def was_oom_killed() -> bool:
    """Return whether the kernel has killed a process of this container because memory ran out.

    False also if that cannot be found out.
    """
    with suppress(OSError, ValueError):
        events = Path("/sys/fs/cgroup/memory.events").read_text().split()
        return int(events[events.index("oom_kill") + 1]) > 0
    return False
