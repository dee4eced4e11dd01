"""Normalises hosts and ports that containers may reach, so that they can be compared."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
MAX_HOST_CHARS = 253
"""Characters of the longest host name that DNS allows."""


@dataclass(frozen=True, slots=True, order=True)
class NetworkTarget:
    """A name in lower case or an address as `ipaddress` writes it, and a port."""

    host: str
    port: int

    @property
    def is_address(self) -> bool:
        """Whether the host is an IP address, not a name."""
        return ":" in self.host or _NUMBER.fullmatch(self.host.rpartition(".")[2]) is not None

    def __str__(self) -> str:
        """Return host and port as in a web address; an IPv6 address is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_target(text: str) -> NetworkTarget:
    """Return the host and port in `example.com:443`, `93.184.215.14:443` or `[2606:2800::1]:443`.

    A host that programs read in different ways, such as `127.1` or `0x7f000001`, is refused.

    Raises:
        ValueError: it is no host and port; the text describes the expected form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError("write host:port, such as example.com:443")
    return NetworkTarget(parse_host(host), int(port))


def parse_host(text: str) -> str:
    """Return a host name in lower case, or an IP address in its normal form.

    An IPv6 address is expected in brackets, and returned without them. A dot at the end of a name, as in
    `example.com.`, is left out.

    Raises:
        ValueError: it is neither, or programs would read it in different ways, such as `127.1`.
    """
    if text.startswith("[") and text.endswith("]"):
        address = ipaddress.IPv6Address(text[1:-1])
        if address.scope_id is not None:  # any text may follow `%`, which names a network card of one machine
            raise ValueError("write an IPv6 address without a zone, the part from %")
        return str(address)
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    # Some resolvers read a name whose last part is a number as an address, so it has to be a whole address.
    if _NUMBER.fullmatch(labels[-1]):
        return str(ipaddress.IPv4Address(name))
    if len(name) > MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("write a host name in ASCII, without a scheme, a path or a wildcard")
    return name
