"""Which addresses are the internet. Pure; the networks are written down, for libraries differ on them."""

from __future__ import annotations

import ipaddress

_V4 = tuple(
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
_V6 = tuple(
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


def is_public(address: str) -> bool:
    """Tell whether an address, as a resolver gives it, is one of the internet and of nobody's own network.

    Of version 6 only what is given out for the internet counts; an address of version 4 written in it is
    judged as that. Scopes (`%eth0`) and what is no address are not public.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return _is_public_v4(found)
    if found.scope_id is not None:
        return False
    if any(found in network for network in _V6_WITH_V4):
        return _is_public_v4(ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF))
    return found in _V6_INTERNET and not any(found in network for network in _V6)


def _is_public_v4(address: ipaddress.IPv4Address) -> bool:
    return not any(address in network for network in _V4)
