from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.network_targets import NetworkTarget, parse_target
from orchestrator.groups.settings import ConfigRefused, GroupConfig, checked
from orchestrator.proxies.egress.public_addresses import is_public

LONGEST = ".".join(["a" * 63] * 3 + ["b" * 61])
"""A name of 253 characters, as many as one may have."""


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("example.com:443", NetworkTarget("example.com", 443)),
        ("EXAMPLE.com.:443", NetworkTarget("example.com", 443)),
        ("xn--bcher-kva.example:8443", NetworkTarget("xn--bcher-kva.example", 8443)),
        ("93.184.215.14:80", NetworkTarget("93.184.215.14", 80)),
        ("[2606:2800:0220::0001]:443", NetworkTarget("2606:2800:220::1", 443)),
        ("localhost:1", NetworkTarget("localhost", 1)),
        (f"{LONGEST}:443", NetworkTarget(LONGEST, 443)),
        ("localhost:65535", NetworkTarget("localhost", 65535)),
    ],
)
def test_a_place_has_one_form(text: str, target: NetworkTarget) -> None:
    assert parse_target(text) == target
    assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":443",
            "example.com",
            "example.com:",
            "example.com:0",
            "example.com:65536",
            "example.com:0443",
        ),
        *(
            "example.com:443 ",
            " example.com:443",
            "exam ple.com:443",
            "example.com:+443",
            "example.com:４４３",
        ),
        *("https://example.com:443", "example.com:443/path", "user@example.com:443", "*.example.com:443"),
        *("127.1:80", "0x7f000001:80", "2130706433:80", "0177.0.0.1:80", "127.0.0.1.:80.", "1.2.3.4.5:80"),
        *(
            "[::1%25eth0:80",
            "[::1%eth0]:80",
            "[2606:4700::1111%25x]:443",
            "[::1%\n⚠ x]:80",
            "::1:80",
            "[1.2.3.4]:80",
            "bücher.example:443",
            "a..b:443",
            "-a.b:443",
            "a" * 64 + ":1",
        ),
        *("example.com\r\nx:443", "example.com\0:443", ".".join(["a" * 60] * 5) + ":443"),
    ],
)
def test_what_can_be_read_in_two_ways_is_no_place(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - also those of `ipaddress`
        parse_target(text)


@pytest.mark.parametrize(
    "address",
    [
        "93.184.215.14",
        "1.1.1.1",
        "100.63.255.255",
        "100.128.0.0",
        "172.32.0.1",
        "2606:2800:220::1",
        "2a00::1",
    ],
)
def test_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.1.1",
        ),
        *("100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "203.0.113.9"),
        *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.88.99.1"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b:1::1"),
        *("::127.0.0.1", "2002:7f00:1::", "2001::1", "2001:db8::1", "100::1", "2606:2800:220::1%eth0"),
        *("", "example.com", "127.1", "0x7f.0.0.1"),
    ],
)
def test_what_is_somebodys_own_is_not(address: str) -> None:
    assert not is_public(address)


@given(st.ip_addresses(v=4))
def test_an_address_of_version_4_is_judged_alike_however_it_is_written(
    address: ipaddress.IPv4Address,
) -> None:
    assert is_public(f"::ffff:{address}") == is_public(str(address))
    if not address.is_global or address.is_multicast:
        assert not is_public(str(address))


@given(st.ip_addresses(v=6))
def test_no_own_address_of_version_6_is_public(address: ipaddress.IPv6Address) -> None:
    if not address.is_global or address.is_multicast or address.is_link_local or address.is_private:
        assert not is_public(str(address)) or address.ipv4_mapped is not None


def test_a_list_is_kept_in_one_form() -> None:
    config = checked({"egress": {"allowlist": ["Example.com:443", "[2606:2800:0220::1]:8443"]}})
    assert config.to_fields() == {"egress": {"allowlist": ["example.com:443", "[2606:2800:220::1]:8443"]}}
    assert config.targets == {NetworkTarget("example.com", 443), NetworkTarget("2606:2800:220::1", 8443)}


def test_nothing_is_reached_by_default() -> None:
    assert (GroupConfig().egress, GroupConfig().targets) == ("none", frozenset())
    assert checked({"egress": "open"}).targets == frozenset()


@pytest.mark.parametrize(
    ("egress", "told"),
    [
        ("all", "egress: Input should be 'none' or 'open', or {\"allowlist\": ["),
        (["example.com:443"], "egress: Input should be 'none' or 'open', or {\"allowlist\": ["),
        ({"allowlist": ["https://example.com"]}, "write host:port"),
        ({"allowlist": []}, "at least 1 item"),
        ({"allowlist": ["a.b:1"] * 201}, "at most 200 items"),
        ({"denylist": ["a.b:1"], "allowlist": ["a.b:1"]}, "Known: allowlist"),
        ({"denylist": ["a.b:1"], "allowlist": ["a.b:1"]}, "'egress.denylist' is no key"),
        ({"allowlist": ["a"]}, "egress.allowlist.0: "),
    ],
)
def test_a_wrong_way_out_is_named(egress: object, told: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        checked({"egress": egress})
    assert told in str(refused.value)
