"""Parse WhatsApp's addresses. A person has a phone number and, since 2024, an opaque number ("LID"). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

PHONE, LID, GROUP = "s.whatsapp.net", "lid", "g.us"
_SERVERS = {"c.us": PHONE, "hosted": PHONE, "hosted.lid": LID}
_USER = re.compile(r"[0-9A-Za-z_-]{1,64}")


class JidLike(Protocol):
    """The attributes of the library's address type that are used here."""

    User: str
    Server: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A person or group: `4917…@s.whatsapp.net`, `1999…@lid`, `1203…@g.us`."""

    user: str
    server: str

    def __str__(self) -> str:
        return f"{self.user}@{self.server}"

    @property
    def is_person(self) -> bool:
        return self.server in (PHONE, LID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """The phone number behind each LID, and the names that people gave themselves."""

    phones: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The names by phone number, or by LID where no number is known."""

    def resolved(self, address: Address) -> Address:
        """Return the same person by phone number, where it is known."""
        phone = self.phones.get(address.user) if address.server == LID else None
        return Address(user=phone, server=PHONE) if phone else address

    def called(self, address: Address) -> str:
        """Return the name to show for a person: their own, else the number."""
        person = self.resolved(address)
        known = self.names.get(person.user)
        return known or (f"+{person.user}" if person.server == PHONE else person.user)


def of(jid: JidLike) -> Address | None:
    """Return an address of the library without its device, or None for another kind of address."""
    return _address(jid.User, jid.Server)


def parse(text: str) -> Address | None:
    """Parse `49…:3@s.whatsapp.net` or `…@lid`; return None when it is no address of a person or group."""
    user, _, server = text.partition("@")
    return _address(user.split(":")[0].split(".")[0], server)


def is_group(text: str) -> bool:
    """Return whether `text` is the address of a group."""
    address = parse(text)
    return address is not None and address.server == GROUP


def _address(user: str, server: str) -> Address | None:
    server = _SERVERS.get(server, server)
    if server not in (PHONE, LID, GROUP) or not _USER.fullmatch(user):
        return None
    return Address(user=user, server=server)
