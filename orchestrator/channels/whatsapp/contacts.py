"""Map LIDs to phone numbers and both to names. Entries come from events; missing numbers are looked up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from orchestrator.channels.whatsapp import addresses
from orchestrator.channels.whatsapp.addresses import LID, PHONE, Address, Directory

if TYPE_CHECKING:
    from neonize.aioze.client import NewAClient

log = logging.getLogger(__name__)

LOOKUP_SECONDS = 5.0
"""Seconds that one lookup of a number or LID may take."""
MAX_PEOPLE = 20_000
"""People in memory above which a mapping is cleared, so that it cannot grow without bound."""


class Contacts:
    """Knows the phone numbers, LIDs (WhatsApp's opaque numbers of people) and names of people.

    They come from events; a number or LID that is missing is looked up. A failed lookup is tried again at the
    next event.
    """

    def __init__(self, client: NewAClient) -> None:
        """`client` is the library's client, which looks numbers up."""
        self._client = client
        self._phones: dict[str, str] = {}
        """The phone number of each person, by their LID."""
        self._names: dict[str, str] = {}
        """The name of each person, by phone number, or by LID where the number is unknown."""
        self._lids: dict[str, str] = {}
        """The LID of each person, by their phone number."""
        self._lid_chats: set[str] = set()
        """Chats in which members are addressed by LID."""
        self.directory = Directory(phones=self._phones, names=self._names)

    def learn(self, pairs: Mapping[str, str]) -> None:
        """Store which phone number belongs to which LID (WhatsApp's opaque number of a person).

        `pairs` maps each LID to its phone number. If too many people are stored, the earlier ones are
        forgotten.
        """
        if len(self._phones) > MAX_PEOPLE:
            self._phones.clear()
            self._lids.clear()
        self._phones.update(pairs)
        self._lids.update({phone: lid for lid, phone in pairs.items()})

    def learn_addressing(self, chat: str, person: Address | None) -> None:
        """Record whether a chat addresses its members by LID or by phone number.

        `person` is an address that the chat used for a member. The address of a group, or None, is ignored.
        """
        if person is None or not person.is_person:
            return
        if person.server == LID:
            self._lid_chats.add(chat)
        else:
            self._lid_chats.discard(chat)

    async def address_in_chat(self, chat: str, person: Address) -> Address:
        """Return the address by which a chat knows a person.

        In a chat that addresses its members by LID it is the person's LID, which is looked up if needed. In
        other chats, and if the LID cannot be found, it is `person` unchanged.
        """
        if person.server != PHONE or chat not in self._lid_chats:
            return person
        if person.user not in self._lids:
            try:
                async with asyncio.timeout(LOOKUP_SECONDS):
                    lid_address = addresses.of(await self._client.get_lid_from_pn(jid_of(person)))
            except Exception as error:  # noqa: BLE001 - without a LID the number is used, which WhatsApp accepts too
                log.info("no LID for a number: %s", type(error).__name__)
                return person
            if lid_address is None or lid_address.server != LID:
                return person
            self._lids[person.user] = lid_address.user
        return Address(user=self._lids[person.user], server=LID)

    def learn_name(self, address: Address | None, name: str) -> None:
        """Store the name that the person at `address` chose for themselves, cut to 80 characters.

        Without an address, or with an empty name, nothing is stored. At more than `MAX_PEOPLE` names, all
        earlier ones are forgotten.
        """
        if address is None or not name.strip():
            return
        if len(self._names) > MAX_PEOPLE:
            self._names.clear()
        self._names[self.directory.resolved(address).user] = " ".join(name.split())[:80]

    async def look_up(self, people: Iterable[Address]) -> None:
        """Look up and store the unknown phone numbers of people who are addressed by LID.

        A number that cannot be found stays unknown; that is no error.
        """
        for person in people:
            if person.server == LID and person.user not in self._phones:
                await self._look_up(person)

    async def _look_up(self, person: Address) -> None:
        """Look up and store a person's phone number by their LID; without an answer it stays unknown."""
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                phone_address = addresses.of(await self._client.get_pn_from_lid(jid_of(person)))
        except Exception as error:  # noqa: BLE001 - without a number the message keeps the LID
            log.info("no number for a LID: %s", type(error).__name__)
            return
        if phone_address is not None and phone_address.server == PHONE:
            self._phones[person.user] = phone_address.user


def jid_of(address: Address) -> addresses.JidLike:
    """Convert an address to the library's own type."""
    from neonize.utils.jid import build_jid

    return build_jid(address.user, address.server)  # type: ignore[no-any-return]
