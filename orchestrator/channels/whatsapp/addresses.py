"""Parse WhatsApp's addresses. Pure.

WhatsApp knows a person by a phone number and, since 2024, also by an opaque number, the "LID". An event may
name a person by either of the two.
"""

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
    """The address of a person or a group: `4917…@s.whatsapp.net`, `1999…@lid` or `1203…@g.us`."""

    user: str
    server: str

    def __str__(self) -> str:
        """Return the address as text: `4917…@s.whatsapp.net`."""
        return f"{self.user}@{self.server}"

    @property
    def is_person(self) -> bool:
        """Whether it is a person's address, by phone number or LID."""
        return self.server in (PHONE, LID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """The phone numbers that belong to LIDs, and the names that people chose for themselves."""

    phones: Mapping[str, str] = field(default_factory=dict)
    """The phone number of each person, by their LID."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The name of each person, by phone number, or by LID where the number is unknown."""

    def resolved(self, address: Address) -> Address:
        """Return the address by phone number of a person with a LID, if the number is known.

        Any other address is returned unchanged.
        """
        phone = self.phones.get(address.user) if address.server == LID else None
        return Address(user=phone, server=PHONE) if phone else address

    def display_name(self, address: Address) -> str:
        """Return the name to show for a person: the one they chose, else `+` and the number, else the LID."""
        resolved = self.resolved(address)
        chosen_name = self.names.get(resolved.user)
        number = f"+{resolved.user}" if resolved.server == PHONE else resolved.user
        return chosen_name or number


def of(jid: JidLike) -> Address | None:
    """Convert an address of the library, dropping the device; return None if it is no person's or group's."""
    return _address(jid.User, jid.Server)


def parse(text: str) -> Address | None:
    """Parse an address such as `49….0:3@s.whatsapp.net`, dropping agent (`.0`) and device (`:3`).

    Return None when `text` is not the address of a person or a group.
    """
    user, _, server = text.partition("@")
    return _address(user.split(":")[0].split(".")[0], server)


def is_group(text: str) -> bool:
    """Return whether `text` is the address of a group."""
    address = parse(text)
    return address is not None and address.server == GROUP


def _address(user: str, server: str) -> Address | None:
    """Return the address of `user` at `server`, which is replaced by its usual name if it has another.

    None if it is no address of a person or a group.
    """
    server = _SERVERS.get(server, server)
    if server not in (PHONE, LID, GROUP) or not _USER.fullmatch(user):
        return None
    return Address(user=user, server=server)
