"""Resolve names for the egress proxy, refuse addresses that are not of the internet, and connect.

The networks that are not of the internet are listed here, because libraries differ on them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

from orchestrator.domain.network_targets import NetworkTarget
from orchestrator.domain.values import Folder
from orchestrator.proxies.name_lookups import LOOKUP_SECONDS, LOOKUPS, LookupRefused, NameLookups

Connection = TypeVar("Connection")

ATTEMPT_SECONDS = 2.0
"""Seconds that one address of a name is tried before the next is tried as well. A name may have many
addresses: this limits the connections that are opened at a time.
"""
_PRIVATE_V4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT, and the metadata of some clouds
        "127.0.0.0/8",
        "168.63.129.16/32",  # the host's agent of a cloud, in a public range
        "169.254.0.0/16",  # link-local, and the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_V6_INTERNET = ipaddress.IPv6Network("2000::/3")
"""The range of IPv6 that is assigned for the internet."""
_PRIVATE_V6 = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # Teredo and other protocols that lead elsewhere
        "2001:db8::/32",
        "2002::/16",  # 6to4: an address of version 4 is inside
        "3fff::/20",
        "5f00::/16",
    )
)
_V6_WITH_V4 = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""Ranges of IPv6 whose addresses contain an IPv4 address in their last 32 bits."""


def is_public(address: str) -> bool:
    """Return whether an address from a resolver is a public one of the internet.

    Of IPv6, only the range that is assigned for the internet is public. For an IPv6 address that contains an
    IPv4 address, the IPv4 address decides. Addresses with a scope (`%eth0`) and invalid ones are not public.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return _is_public_v4(parsed)
    if parsed.scope_id is not None:
        return False
    if any(parsed in network for network in _V6_WITH_V4):
        return _is_public_v4(ipaddress.IPv4Address(int(parsed) & 0xFFFF_FFFF))  # the last 32 bits
    return parsed in _V6_INTERNET and not any(parsed in network for network in _PRIVATE_V6)


def _is_public_v4(address: ipaddress.IPv4Address) -> bool:
    """Return whether an IPv4 address is of the internet: in none of the private and reserved networks."""
    return not any(address in network for network in _PRIVATE_V4)


def alternate_versions(addresses: Sequence[str]) -> list[str]:
    """Return the addresses reordered, so that IPv4 and IPv6 alternate; the first one stays first. Pure."""
    # Only addresses of IPv6 have colons.
    same_version = [address for address in addresses if (":" in address) == (":" in addresses[0])]
    other_version = [address for address in addresses if address not in same_version]
    return [
        address
        for pair in zip_longest(same_version, other_version)
        for address in pair
        if address is not None
    ]


class EgressUnreachable(Exception):
    """The target cannot be reached, or must not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressConnection:
    """An open connection, and the address of its other end."""

    address: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def abort(self) -> None:
        """Close the connection without waiting for what is not sent yet."""
        self.writer.transport.abort()


class Resolver:
    """Resolves names and connects. A name is looked up once, so that the address that was checked is the one
    that is connected to.
    """

    def __init__(self, *, lookups: int = LOOKUPS, lookup_seconds: float = LOOKUP_SECONDS) -> None:
        """Prepare for lookups; at most `lookups` run at once, and each may take `lookup_seconds`."""
        self._lookups = NameLookups(lookups=lookups, lookup_seconds=lookup_seconds)

    async def resolve(self, target: NetworkTarget, folder: Folder) -> Sequence[str]:
        """Return the IP addresses of the target's host, looked up for a group.

        The number of lookups that run at once is limited, in all and for a group.

        Raises:
            OSError: the host has no address.
            EgressUnreachable: no answer came in time, or too many lookups are running.
        """
        try:
            return await self._lookups.look_up(target.host, target.port, share=folder)
        except LookupRefused as error:
            raise EgressUnreachable(str(error)) from None

    async def dial(self, address: str, port: int) -> EgressConnection:
        """Connect to an address. Raises `OSError`."""
        # The flag forbids a lookup, so that only the address that was checked is connected to.
        reader, writer = await asyncio.open_connection(address, port, flags=socket.AI_NUMERICHOST)
        return EgressConnection(address=address, reader=reader, writer=writer)


async def connect(internet: Resolver, target: NetworkTarget, folder: Folder) -> EgressConnection:
    """Connect to a target on the internet, for the group `folder`, whose lookups of names are limited.

    A name is refused if even one of its addresses is not public: such a name is more likely an attack than a
    mistake. The first address that answers is used. After `ATTEMPT_SECONDS` of silence the next address is
    tried as well: in some networks, packets to IPv6 addresses get lost.

    Raises:
        EgressUnreachable: the target is not public, has no address, or does not answer.
    """
    try:
        addresses = await internet.resolve(target, folder)
    except OSError as error:
        raise EgressUnreachable("the name has no address") from error
    if not addresses or not all(is_public(address) for address in addresses):
        raise EgressUnreachable("the name leads to an address that is not of the internet")
    try:
        return await first_to_answer(
            alternate_versions(addresses),
            partial(internet.dial, port=target.port),
            EgressConnection.abort,
            attempt_seconds=ATTEMPT_SECONDS,
        )
    except OSError:
        raise EgressUnreachable("nothing answers there") from None


async def first_to_answer(
    addresses: Sequence[str],
    dial: Callable[[str], Coroutine[Any, Any, Connection]],
    abort: Callable[[Connection], None],
    *,
    attempt_seconds: float,
) -> Connection:
    """Connect by `dial` to the first address that answers.

    Each address is tried alone until it fails, or for `attempt_seconds`; then the next one is tried, too. All
    other attempts are ended once one has connected. `abort` closes a connection that is not needed.

    Raises:
        OSError: no address answers; it is the error of the attempt that failed last.
    """
    remaining = list(addresses)
    last_error = OSError("the name has no address")
    attempts: set[asyncio.Task[Connection]] = set()
    try:
        while remaining or attempts:
            if remaining:
                attempts.add(asyncio.create_task(dial(remaining.pop(0)), name="dial"))
            done, _ = await asyncio.wait(
                attempts, timeout=attempt_seconds if remaining else None, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                attempts.discard(attempt)
                try:
                    return attempt.result()
                except OSError as error:
                    last_error = error
    finally:
        for attempt in attempts:
            attempt.cancel()
        # A slower attempt may have connected in the moment before it was cancelled.
        for result in await asyncio.gather(*attempts, return_exceptions=True):
            if not isinstance(result, BaseException):
                abort(result)
    raise last_error
