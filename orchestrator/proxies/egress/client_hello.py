"""Parse the ClientHellos of a TLS connection, as far as they name the host that the client wants.

Pure: bytes in, a value out. The layout is defined by RFC 8446 (4.1.2 and 5.1) and RFC 6066 (3). A server may
request a second hello (HelloRetryRequest), and some servers use the name in that one.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.network_targets import NetworkTarget, parse_host

HANDSHAKE_RECORD = 0x16
"""The first byte of every TLS connection."""
MAX_HELLO_BYTES = 16 * 1024
"""Bytes that a ClientHello may take with its records; those of today's clients take 500 to 2,000."""
_MAX_RECORD_BYTES = 2**14
"""Bytes of an unencrypted record's content, at most."""
_CHANGE_CIPHER_SPEC_RECORD = 0x14
_ALERT_RECORD = 0x15
_DATA_RECORD = 0x17
_RECORDS = frozenset({_CHANGE_CIPHER_SPEC_RECORD, _ALERT_RECORD, HANDSHAKE_RECORD, _DATA_RECORD})
_HEADER_BYTES = 5
"""Bytes before a record's content: its kind, the version in two bytes, and the content's length in two."""
_MESSAGE_HEADER_BYTES = 4
"""Bytes before the body of a handshake message: its kind, and the body's length in three bytes."""
_MAJOR_VERSION = 3
"""The first byte of the version in all records of TLS."""
_MAX_ENCRYPTED_RECORD_BYTES = 2**14 + 2048
"""Bytes of an encrypted record's content, at most: TLS 1.2 allows 2,048 more than in the clear."""
_MIN_EARLY_DATA_BYTES = 17
"""Bytes of TLS 1.3's shortest encrypted record: its kind, and a tag of 16 bytes."""
_MAX_COUNTED_RECORDS = 32
"""Whole hellos and other records, without early data, that may follow the first hello while its checks go on;
a client sends one or two.
"""
_CLIENT_HELLO = 1
_KEY_MESSAGES = frozenset({11, 16})
"""Certificate and ClientKeyExchange, with which a client of TLS 1.2 answers the server's hello."""
_SERVER_NAME = 0
_EARLY_DATA = 42
_HOST_NAME = 0
_ENCRYPTED_HELLOS = frozenset({*range(0xFE08, 0xFE0E), 0xFFCE})
"""Extensions that contain another hello or name, encrypted: encrypted_client_hello (RFC 9849) and its drafts.
"""


class BadClientHello(Exception):
    """The bytes are no well-formed ClientHello; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHello:
    """The part of a ClientHello that decides which host answers it."""

    server_name: str | None
    """The name as `NetworkTarget` writes it; None if the hello has none."""
    has_encrypted_hello: bool
    """Whether it may contain a second hello that only the server can read."""
    offers_early_data: bool = False
    """Whether encrypted data may follow before the server has answered."""


class HelloRefused(Exception):
    """A later hello must not be sent; `server_name` is the other host that it names."""

    def __init__(self, text: str, *, server_name: str | None = None) -> None:
        super().__init__(text)
        self.server_name = server_name


class ClientHelloReader:
    """Collects a connection's bytes until its first ClientHello is whole. Each byte is processed once."""

    def __init__(self) -> None:
        self._received = bytearray()
        """All bytes that were fed."""
        self._parsed = 0
        """The number of bytes of the whole records at the start of `_received`."""
        self._message = bytearray()
        """The contents of these records: the beginning of the hello."""

    @property
    def received(self) -> bytes:
        """Return all bytes that were fed, unchanged."""
        return bytes(self._received)

    @property
    def hello_bytes(self) -> bytes:
        """The records of the hello, without what was fed after them."""
        return bytes(self._received[: self._parsed])

    @property
    def later_bytes(self) -> bytes:
        """The bytes that were fed after the records of the hello."""
        return bytes(self._received[self._parsed :])

    def feed(self, data: bytes) -> ClientHello | None:
        """Add bytes of the connection, and return the hello once it is whole, else None.

        Raises:
            BadClientHello: the hello is malformed or too long, or something else precedes it.
        """
        self._received += data
        while (record := self._next_record()) is not None:
            self._message += record
            if (hello := self._whole_message()) is not None:
                return parse(hello)
        if len(self._received) >= MAX_HELLO_BYTES:
            raise BadClientHello(f"the TLS hello is over {MAX_HELLO_BYTES:,} bytes")
        return None

    def _next_record(self) -> bytes | None:
        """Return the content of the next record; None while it is not whole.

        Raises `BadClientHello` for an impossible record, also before it is whole.
        """
        head = self._received[self._parsed : self._parsed + _HEADER_BYTES]
        if (head and head[0] != HANDSHAKE_RECORD) or (len(head) > 1 and head[1] != _MAJOR_VERSION):
            raise BadClientHello("it does not begin with a TLS hello")
        if len(head) < _HEADER_BYTES:
            return None
        length = int.from_bytes(head[3:5])  # the last two bytes of the header
        if not 0 < length <= _MAX_RECORD_BYTES:
            raise BadClientHello("a TLS record has an impossible length")
        end = self._parsed + _HEADER_BYTES + length
        if len(self._received) < end:
            return None
        payload = bytes(self._received[self._parsed + _HEADER_BYTES : end])
        self._parsed = end
        return payload

    def _whole_message(self) -> bytes | None:
        """Return the body of the collected hello, or None while it is not whole. Raises `BadClientHello`."""
        if self._message[0] != _CLIENT_HELLO:
            raise BadClientHello("it does not begin with a TLS hello")
        return _whole_hello(self._message)


class LaterHellos:
    """Filters what a client sends after its first hello, and checks each further unencrypted ClientHello.

    A server that has sent HelloRetryRequest reads a second hello. Before it, the server skips alerts of the
    kind "warning", change_cipher_spec and, if a hello offered early data, encrypted data: none of these ends
    the checks. They end with something that a server which waits for a hello never accepts: the client's keys
    of TLS 1.2, or encrypted data that no hello offered. After that, nothing unencrypted names a host.
    """

    def __init__(self, target: NetworkTarget, first: ClientHello) -> None:
        """Start after `first`, the first hello, which was found to name `target`."""
        self._target = target
        self._offers_early_data = first.offers_early_data
        self._is_over = False
        """Whether the checks have ended: all further bytes may be sent."""
        self._counted_records = 0
        """Records that were passed on while the checks go on: a limit ends an endless handshake."""
        self._may_be_encrypted = False
        """Whether a change_cipher_spec came: in TLS 1.2, later handshake records are encrypted."""
        self._received = bytearray()
        """The bytes that may not be sent yet: an incomplete record."""
        self._held = bytearray()
        """The whole records that contain a part of a hello."""
        self._message = bytearray()
        """The part of a hello in `_held`."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may be sent now; an incomplete record or hello is held until it is whole.

        Once the checks have ended, `data` is returned unchanged.

        Raises:
            BadClientHello: something that a client never sends here.
            HelloRefused: a hello names another host, or hides one.
        """
        return data if self._is_over else self._checked_bytes(data)

    def _checked_bytes(self, data: bytes) -> bytes:
        """Add `data` to the received bytes, and return those that may be sent now.

        Whole records are checked one after another. Once the checks have ended, all bytes may be sent.
        """
        self._received += data
        sendable = self._take_early_data()
        while not self._is_over and (record := self._next_record()) is not None:
            sendable += self._pass_record(record)
            sendable += self._take_early_data()
        if self._is_over:
            sendable += self._received
            self._received.clear()
        return bytes(sendable)

    def _take_early_data(self) -> bytearray:
        """Remove the whole records of early data that the received bytes begin with, and return them.

        Early data are encrypted records that a client may send before the server's answer. All are taken in
        one step, as there may be thousands. Return nothing if no hello offered early data, or in the middle
        of a hello.
        """
        end, received = 0, self._received
        if self._offers_early_data and not self._message:
            while (
                end + _HEADER_BYTES <= len(received)
                and received[end] == _DATA_RECORD
                and received[end + 1] == _MAJOR_VERSION
            ):
                # The last two bytes of the header.
                length = received[end + 3] << 8 | received[end + 4]
                is_possible = _MIN_EARLY_DATA_BYTES <= length <= _MAX_ENCRYPTED_RECORD_BYTES
                # An impossible record is left for `_pass_record`, which refuses it; an incomplete one waits.
                if not is_possible or end + _HEADER_BYTES + length > len(received):
                    break
                end += _HEADER_BYTES + length
        early_data = received[:end]
        del received[:end]
        return early_data

    def _next_record(self) -> bytes | None:
        """Remove and return the next whole record with its header, or None while it is not whole.

        Raises `BadClientHello` if the bytes are no record, even before the record is whole.
        """
        head = self._received[:_HEADER_BYTES]
        if (head and head[0] not in _RECORDS) or (len(head) > 1 and head[1] != _MAJOR_VERSION):
            raise BadClientHello("something that is no TLS record follows the TLS hello")
        if len(head) < _HEADER_BYTES:
            return None
        length = int.from_bytes(head[3:5])  # the last two bytes of the header
        if not 0 < length <= _MAX_ENCRYPTED_RECORD_BYTES:
            raise BadClientHello("a TLS record has an impossible length")
        end = _HEADER_BYTES + length
        if len(self._received) < end:
            return None
        record = bytes(self._received[:end])
        del self._received[:end]
        return record

    def _pass_record(self, record: bytes) -> bytes:
        """Check a whole record and return the bytes that may be sent now.

        These are the record itself, nothing while a hello is incomplete, or all records of a checked hello.
        Encrypted data that no hello offered ends all checks. Other records, such as alerts, are passed on and
        counted; after a change_cipher_spec, later handshake records may be encrypted.

        Raises:
            BadClientHello: a client never sends this record here.
            HelloRefused: the record completes a hello that names another host, or hides one.
        """
        if record[0] == HANDSHAKE_RECORD:
            return self._pass_handshake(record)
        if self._message:
            raise BadClientHello("something stands between the parts of a TLS hello")
        if record[0] == _DATA_RECORD:
            if self._offers_early_data:
                # `_take_early_data` has taken all records of a possible length.
                raise BadClientHello("a TLS record has an impossible length")
            self._is_over = True
            return record
        self._may_be_encrypted = self._may_be_encrypted or record[0] == _CHANGE_CIPHER_SPEC_RECORD
        return self._pass_counted(record)

    def _pass_counted(self, records: bytes) -> bytes:
        """Count one whole hello, or one other record, and return its bytes, which may be sent.

        This limits an endless handshake. Early data are not counted, as there may be much. Raises
        `BadClientHello` after more than `_MAX_COUNTED_RECORDS`.
        """
        self._counted_records += 1
        if self._counted_records > _MAX_COUNTED_RECORDS:
            raise BadClientHello("too many TLS records follow the hello in the clear")
        return records

    def _pass_handshake(self, record: bytes) -> bytes:
        """Return the bytes that may be sent after this record of a handshake.

        A hello is held until it is whole and checked. A message with the client's keys ends all checks: a
        server that waits for a hello does not accept it. A message that may be encrypted, and is no hello, is
        passed on unread.

        Raises:
            BadClientHello: the message is none of these, or the hello is malformed or too long.
            HelloRefused: the hello names another host, or hides one.
        """
        starts_message = not self._message
        self._message += record[_HEADER_BYTES:]
        if not self._may_be_hello(self._message):
            kind = self._message[0]
            self._message.clear()
            # The kind of an encrypted message cannot be read: it is passed on, and the checks go on. But if
            # earlier records of it were held, its first byte is that of a hello, and it is refused below as
            # being of an unknown kind.
            if starts_message and self._may_be_encrypted:
                return self._pass_counted(record)
            if kind not in _KEY_MESSAGES:
                raise BadClientHello("a message of an unknown kind follows the TLS hello")
            self._is_over = True
            return record
        self._held += record
        if len(self._held) > MAX_HELLO_BYTES:
            raise BadClientHello(f"the TLS hello is over {MAX_HELLO_BYTES:,} bytes")
        body = _whole_hello(self._message)
        return b"" if body is None else self._pass_hello(parse(body))

    def _may_be_hello(self, message: bytearray) -> bool:
        """Return whether a message, or its beginning, may be a ClientHello.

        The first byte must be that of a ClientHello, which is enough for an unencrypted message. An encrypted
        message may have that byte by chance, so two lengths must fit as well: no server accepts a hello of
        256 KiB, and a session id has at most 32 bytes. One encrypted message in 130,000 fits by chance; its
        connection is refused.
        """
        if message[0] != _CLIENT_HELLO or not self._may_be_encrypted:
            return message[0] == _CLIENT_HELLO
        # Byte 1 is the highest of the three bytes of the body's length. Byte 38 is the length of the session
        # id: before it are the header (4 bytes), the version (2) and the random (32). A byte that has not
        # arrived yet gives an empty slice, which is small enough.
        highest_length_byte, session_id_length = message[1:2], message[38:39]
        return highest_length_byte <= b"\x03" and session_id_length <= b"\x20"

    def _pass_hello(self, hello: ClientHello) -> bytes:
        """Check a whole hello, count it, and return its records, which were held and may be sent now.

        Raises:
            HelloRefused: the hello names another host than the target, or hides one.
            BadClientHello: too many unencrypted records and hellos came.
        """
        if (reason := refusal(hello, self._target)) is not None:
            raise HelloRefused(reason, server_name=hello.server_name)
        self._offers_early_data = self._offers_early_data or hello.offers_early_data
        records = bytes(self._held)
        self._held.clear()
        self._message.clear()
        return self._pass_counted(records)


def _whole_hello(message: bytes | bytearray) -> bytes | None:
    """Return the body of a ClientHello, or None while the message is not whole.

    Raises `BadClientHello` if the hello is too long, or something follows it.
    """
    if len(message) < _MESSAGE_HEADER_BYTES:
        return None
    # After the kind of the message, its header has the length of the body.
    end = _MESSAGE_HEADER_BYTES + int.from_bytes(message[1:_MESSAGE_HEADER_BYTES])
    if end > MAX_HELLO_BYTES:
        raise BadClientHello(f"the TLS hello is over {MAX_HELLO_BYTES:,} bytes")
    if len(message) > end:
        # A second message in the record could be a second hello with another name.
        raise BadClientHello("something follows the TLS hello in its record")
    return bytes(message[_MESSAGE_HEADER_BYTES:]) if len(message) == end else None


def parse(body: bytes) -> ClientHello:
    """Parse the body of a ClientHello, which follows its header of four bytes. Raises `BadClientHello`."""
    fields = _FieldReader(body)
    fields.take(2 + 32)  # legacy_version, random
    for length_bytes in (1, 2, 1):  # session id, cipher suites, compression methods
        fields.vector(length_bytes)
    # A hello without extensions is valid, though it names no host.
    extensions = _extensions(fields.vector(2)) if fields.has_more else {}
    fields.finish()
    name = extensions.get(_SERVER_NAME)
    return ClientHello(
        server_name=None if name is None else _server_name(name),
        has_encrypted_hello=not _ENCRYPTED_HELLOS.isdisjoint(extensions),
        offers_early_data=_EARLY_DATA in extensions,
    )


def refusal(hello: ClientHello, target: NetworkTarget) -> str | None:
    """Return why a hello may not be sent to the target of its connection, or None if it may.

    The group's list allows the target, so the hello must name the same host, and not in encrypted form.

    A client that connects to an IP address sends no name (RFC 6066): any name is then another host's.
    """
    if hello.has_encrypted_hello:
        return "the TLS hello may hide another name (encrypted_client_hello): switch ECH off in the client"
    if hello.server_name is None:
        return None if target.is_address else "the TLS hello names no host"
    return None if hello.server_name == target.host else "the TLS hello names another host than CONNECT"


def _extensions(data: bytes) -> dict[int, bytes]:
    """Map the number of each extension of a hello to its content. Raises `BadClientHello`."""
    fields = _FieldReader(data)
    extensions: dict[int, bytes] = {}
    while fields.has_more:
        number = int.from_bytes(fields.take(2))
        if number in extensions:
            # Programs differ in which of two extensions they use.
            raise BadClientHello("a TLS extension stands twice in the hello")
        extensions[number] = fields.vector(2)
    return extensions


def _server_name(data: bytes) -> str:
    """Return the one host name in the extension `server_name`. Raises `BadClientHello`."""
    outer = _FieldReader(data)
    names = _FieldReader(outer.vector(2))
    outer.finish()
    kind = names.take(1)[0]
    name = names.vector(2)
    names.finish()  # exactly one name: programs differ in which of two they use
    if kind != _HOST_NAME:
        raise BadClientHello("the TLS hello has a name of an unknown kind")
    try:
        return parse_host(name.decode("ascii"))
    except ValueError as error:
        raise BadClientHello("the TLS hello names something that is no host") from error


class _FieldReader:
    """Reads the fields of a part of a hello one after another, from its start."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._taken = 0
        """The number of bytes that were read."""

    @property
    def has_more(self) -> bool:
        """Whether fields are left."""
        return self._taken < len(self._data)

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises `BadClientHello` if fewer are left."""
        start, self._taken = self._taken, self._taken + count
        if self._taken > len(self._data):
            raise BadClientHello("the TLS hello is malformed")
        return self._data[start : self._taken]

    def vector(self, length_bytes: int) -> bytes:
        """Return the content of the next field, which begins with its length in `length_bytes` bytes.

        Raises `BadClientHello` if fewer bytes are left.
        """
        return self.take(int.from_bytes(self.take(length_bytes)))

    def finish(self) -> None:
        """Raise `BadClientHello` if bytes are left."""
        if self.has_more:
            raise BadClientHello("the TLS hello is malformed")
