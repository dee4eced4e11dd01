"""The TLS hello by which the egress proxy knows the host that a client wants."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.network_targets import parse_target
from orchestrator.proxies.egress.client_hello import (
    MAX_HELLO_BYTES,
    BadClientHello,
    ClientHello,
    ClientHelloReader,
    HelloRefused,
    LaterHellos,
    refusal,
)
from tests.support.client_hellos import (
    ECH,
    GREASE_ECH,
    client_hello,
    in_records,
    message_of,
    server_names,
    with_extension,
)

GOOD = parse_target("good.example:443")
REAL = client_hello("good.example")
NAMELESS = client_hello(None)


def read(data: bytes) -> ClientHello | None:
    return ClientHelloReader().feed(data)


def test_a_hello_of_openssl_says_its_name() -> None:
    hello = read(REAL)
    assert hello == ClientHello(server_name="good.example", has_encrypted_hello=False)
    assert refusal(hello, GOOD) is None


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100, 2**14])
def test_a_hello_is_read_whatever_records_and_pieces_it_comes_in(size: int) -> None:
    data = in_records(message_of(REAL), size=size)
    reader = ClientHelloReader()
    seen = [reader.feed(data[at : at + 1]) for at in range(len(data))]
    assert seen[:-1] == [None] * (len(data) - 1)
    assert seen[-1] == ClientHello(server_name="good.example", has_encrypted_hello=False)
    assert reader.received == data


def test_what_follows_the_hello_in_records_of_its_own_is_received_unread() -> None:
    reader = ClientHelloReader()
    early_data = b"\x17\x03\x03\x00\x05hello"
    assert reader.feed(REAL + early_data) is not None
    assert reader.received == REAL + early_data


@pytest.mark.parametrize("sent", [b"GOOD.Example", b"good.example."])
def test_a_name_is_the_same_in_any_case_and_with_a_dot_behind(sent: bytes) -> None:
    hello = read(with_extension(NAMELESS, 0, server_names(sent)))
    assert hello is not None
    assert refusal(hello, GOOD) is None


def test_a_name_outside_of_ascii_is_compared_as_it_travels() -> None:
    hello = read(client_hello("bücher.example"))
    assert hello is not None
    assert refusal(hello, parse_target("xn--bcher-kva.example:443")) is None
    assert refusal(hello, parse_target("xn--bucher-example.example:443")) is not None


@pytest.mark.parametrize("kind", [ECH, 0xFE0A, 0xFFCE])
def test_a_hello_that_may_hide_another_is_refused_though_its_outer_name_is_right(kind: int) -> None:
    hello = read(with_extension(REAL, kind, GREASE_ECH))
    assert hello is not None
    assert "encrypted_client_hello" in str(refusal(hello, GOOD))


@pytest.mark.parametrize("kind", [0x0A0A, 0xFAFA, 0xABCD])
def test_an_extension_that_is_not_known_is_passed_over(kind: int) -> None:
    hello = read(with_extension(REAL, kind, b"x" * 40))
    assert hello is not None
    assert refusal(hello, GOOD) is None


@pytest.mark.parametrize(
    ("hello", "target", "reason"),
    [
        (client_hello("other.example"), "good.example:443", "names another host"),
        (client_hello("sub.good.example"), "good.example:443", "names another host"),
        (NAMELESS, "good.example:443", "names no host"),
        (NAMELESS, "93.184.215.14:443", None),
        (NAMELESS, "[2606:2800:220::1]:443", None),
        (with_extension(NAMELESS, 0, server_names(b"93.184.215.14")), "93.184.215.14:443", None),
        (REAL, "93.184.215.14:443", "names another host"),
        (client_hello("8.8.8.8"), "8.8.8.8:443", None),
    ],
    ids=count(),
)
def test_the_name_is_that_of_connect(hello: bytes, target: str, reason: str | None) -> None:
    parsed = read(hello)
    assert parsed is not None
    told = refusal(parsed, parse_target(target))
    assert told is None if reason is None else reason in str(told)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10",  # a hello of SSL 2
        b"\x16\x02\x00",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01",
        b"\x15\x03\x01\x00\x02\x01\x00",
        b"\x17" + REAL[1:],
        REAL[:1] + b"\x02" + REAL[2:],
        in_records(b"\x02" + message_of(REAL)[1:], size=2**14),  # a ServerHello
        in_records(b"\x01\x00\x40\x00", size=2**14),
        in_records(b"\x01\x01" + message_of(REAL)[2:], size=2**14),  # it says 64 KiB more than there are
        in_records(message_of(REAL) + message_of(client_hello("other.example")), size=2**14),
        REAL[:40] + in_records(message_of(REAL), size=2**14)[:20],
        with_extension(REAL, 0, server_names(b"other.example")),
        with_extension(REAL, 0x0A0A, b"")[:-1] + b"\x01",
        with_extension(NAMELESS, 0, server_names(b"good.example", b"other.example")),
        with_extension(NAMELESS, 0, server_names(b"good.example", kind=1)),
        with_extension(NAMELESS, 0, server_names(b"good.example") + b"x"),
        *(
            with_extension(NAMELESS, 0, server_names(name))
            for name in (b"", b"a b", b"good.example\0.other", "gööd.example".encode(), b"a" * 64, b"127.1")
        ),
        with_extension(NAMELESS, 0, b""),
        in_records(b"\x01\x00\x00\x02\x03\x03", size=2**14),
    ],
    ids=count(),  # a hello is random, and would be a name that differs between workers
)
def test_what_is_no_proper_hello_is_refused(data: bytes) -> None:
    with pytest.raises(BadClientHello):
        read(data + b"\0" * MAX_HELLO_BYTES)


def test_a_hello_has_a_bounded_length() -> None:
    largest = with_extension(REAL, 0xABCD, b"x" * (MAX_HELLO_BYTES - len(REAL) - 4 - 5))
    assert read(largest) is not None
    in_one_record = with_extension(REAL, 0xABCD, b"x" * (2**14 - len(message_of(REAL)) - 4))
    assert in_one_record[3:5] == (2**14).to_bytes(2)
    assert read(in_one_record) is not None
    with pytest.raises(BadClientHello, match="over 16,384 bytes"):
        ClientHelloReader().feed(in_records(b"\x01\x00\x3f\xfc" + b"x" * 20_000, size=1)[:MAX_HELLO_BYTES])
    reader = ClientHelloReader()
    drip = in_records(b"\x01\x00\x3f\xfc" + b"x" * MAX_HELLO_BYTES, size=1)
    assert reader.feed(drip[:16_000]) is None
    with pytest.raises(BadClientHello, match="over 16,384 bytes"):
        reader.feed(drip[16_000:17_000])
    assert len(reader.received) <= MAX_HELLO_BYTES + 1000


def test_a_hello_without_extensions_names_no_host() -> None:
    oldest = b"\x03\x01" + b"r" * 32 + b"\x00" + b"\x00\x02\x00\x2f" + b"\x01\x00"
    hello = read(in_records(b"\x01" + len(oldest).to_bytes(3) + oldest, size=2**14))
    assert hello == ClientHello(server_name=None, has_encrypted_hello=False)


OTHER = client_hello("other.example")
EARLY = with_extension(REAL, 42, b"")
CHANGE = b"\x14\x03\x03\x00\x01\x01"
WARNING = b"\x15\x03\x03\x00\x02\x01\x5a"
DATA = b"\x17\x03\x03\x00\x15encrypted-by-the-keys"
KEYS = in_records(b"\x10\x00\x00\x21" + b"k" * 33, size=2**14)
FINISHED = in_records(b"\x01\x80" + b"f" * 38, size=2**14)
"""An encrypted message of TLS 1.2 that begins as a hello does."""
LIKE_HELLOS = [
    in_records(begin + b"f" * (36 - len(begin)) + b"ff" + rest, size=2**14)
    for begin, rest in (
        (b"\x01\x40", b"\x05"),
        (b"\x01\x04", b"\x20"),
        (b"\x01\x02", b"\x40"),
        (b"\x05\x00", b"\x05"),
    )
]
"""Encrypted messages that agree with a hello in all but its length, its session id or its kind."""


def data_of(length: int) -> bytes:
    return b"\x17\x03\x03" + length.to_bytes(2) + b"e" * length


def later(first: bytes, sent: bytes, *, piece: int) -> bytes:
    """Return the part of `sent`, which came in pieces after a first hello, that goes out."""
    reader = ClientHelloReader()
    hello = reader.feed(first)
    assert hello is not None
    hellos = LaterHellos(GOOD, hello)
    return b"".join(hellos.feed(sent[at : at + piece]) for at in range(0, len(sent), piece))


@pytest.mark.parametrize("piece", [1, 7, 2**16])
@pytest.mark.parametrize(
    ("first", "sent"),
    [
        (REAL, OTHER),
        (REAL, CHANGE + OTHER),
        (REAL, CHANGE + in_records(message_of(OTHER), size=1)),
        (REAL, CHANGE + in_records(message_of(OTHER), size=40)),
        (REAL, REAL + CHANGE + OTHER),
        (REAL, WARNING + OTHER),
        (REAL, CHANGE + FINISHED + OTHER),
        (EARLY, DATA + OTHER),
        (EARLY, data_of(17) + data_of(300) + data_of(2**14 + 2048) + OTHER),
        (EARLY, CHANGE + DATA + DATA + CHANGE + OTHER),
        (REAL, EARLY + DATA + OTHER),
        (REAL, NAMELESS),
        (REAL, with_extension(REAL, ECH, GREASE_ECH)),
    ],
    ids=count(),
)
def test_a_later_hello_is_judged_as_the_first_one_whatever_stands_between(
    first: bytes, sent: bytes, piece: int
) -> None:
    with pytest.raises(HelloRefused):
        later(first, sent, piece=piece)


@pytest.mark.parametrize("piece", [1, 2**16])
@pytest.mark.parametrize(
    "sent",
    [
        in_records(message_of(REAL) + message_of(OTHER), size=2**14),
        CHANGE + in_records(message_of(REAL) + message_of(OTHER), size=2**14),
        CHANGE * 33,
        WARNING * 33,
        (CHANGE + FINISHED) * 17,
        EARLY + b"\x17\x03\x03\x00\x10" + b"x" * 16,
        in_records(message_of(OTHER), size=40)[:45] + CHANGE,
        in_records(message_of(OTHER), size=40)[:45] + DATA,
        in_records(b"\x00\x00\x00\x00" + message_of(OTHER), size=2**14),
        in_records(b"\x02" + message_of(REAL)[1:], size=2**14),
        in_records(b"\x01\x00\x3f\xfc" + b"x" * MAX_HELLO_BYTES, size=1)[: MAX_HELLO_BYTES + 12],
        b"\x18\x03\x03\x00\x01x" + OTHER,
        CHANGE + in_records(b"\x01\x03" + b"\x00" * 60, size=2**14),
        data_of(2**14 + 2049),
        b"\x80\x2e\x01\x03\x01",
        b"\x16\x03\x01\x00\x00" + OTHER,
        b"\x17\x03\x03\xff\xff",
        b"GET / HTTP/1.1\r\n",
    ],
    ids=count(),
)
def test_nothing_else_stands_in_the_clear_after_a_hello(sent: bytes, piece: int) -> None:
    with pytest.raises(BadClientHello):
        later(REAL, sent, piece=piece)


@pytest.mark.parametrize("piece", [1, 7, 2**16])
@pytest.mark.parametrize(
    ("first", "sent"),
    [
        (REAL, CHANGE + REAL + CHANGE + DATA + b"whatever"),
        (REAL, in_records(message_of(REAL), size=40) + DATA),
        (EARLY, DATA * 3 + REAL + DATA * 3),
        (REAL, KEYS + CHANGE + FINISHED + DATA + OTHER),
        (REAL, CHANGE + FINISHED + DATA + OTHER),
        (REAL, DATA + OTHER),
        (REAL, data_of(2**14 + 2048) + OTHER),
        *((REAL, CHANGE + each + DATA) for each in LIKE_HELLOS),
        (REAL, WARNING),
    ],
    ids=count(),
)
def test_what_a_client_sends_after_its_hello_goes_out_as_it_came(
    first: bytes, sent: bytes, piece: int
) -> None:
    assert later(first, sent, piece=piece) == sent


@given(st.binary(max_size=400), st.sampled_from([b"", CHANGE, WARNING, CHANGE + DATA]))
def test_whatever_follows_a_hello_is_passed_on_in_order_or_refused(data: bytes, before: bytes) -> None:
    with suppress(BadClientHello, HelloRefused):
        sent = before + in_records(data, size=100)
        assert sent.startswith(later(EARLY, sent, piece=50))


@given(st.binary(max_size=400))
def test_no_bytes_are_read_as_a_hello_by_mistake(data: bytes) -> None:
    with suppress(BadClientHello):
        assert read(in_records(data, size=2**14)) is None or data[0] == 1


@given(st.data())
def test_a_hello_with_a_few_other_bytes_never_fails_in_another_way(data: st.DataObject) -> None:
    changed = bytearray(REAL)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadClientHello):
        hello = read(bytes(changed))
        if hello is not None:
            refusal(hello, GOOD)


def test_a_later_hello_that_is_refused_says_which_host_it_named() -> None:
    with pytest.raises(HelloRefused, match="another host") as refused:
        later(REAL, CHANGE + OTHER, piece=2**16)
    assert refused.value.server_name == "other.example"


@pytest.mark.parametrize("piece", [5, 2**16])
@pytest.mark.parametrize("sent", [CHANGE * 32, WARNING * 32, KEYS + CHANGE * 40 + FINISHED + DATA])
def test_as_many_records_as_may_follow_are_passed_on_and_after_the_keys_any_number(
    sent: bytes, piece: int
) -> None:
    assert later(REAL, sent, piece=piece) == sent
