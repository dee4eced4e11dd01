"""Keep which phone number, LID and name belong together: learned from events, else looked up."""

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
MAX_KNOWN = 20_000
"""So many people are remembered; beyond that all are forgotten and learned anew."""


class Contacts:
    """A directory of people that grows with each event. What was not found is looked up again next time."""

    def __init__(self, client: NewAClient) -> None:
        self._client = client
        self._phones: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._lids: dict[str, str] = {}
        self._lid_chats: set[str] = set()
        """Chats whose members are known to each other by LID alone."""
        self.directory = Directory(phones=self._phones, names=self._names)

    def learn(self, pairs: Mapping[str, str]) -> None:
        """Note which phone numbers are behind LIDs."""
        if len(self._phones) > MAX_KNOWN:
            self._phones.clear()
            self._lids.clear()
        self._phones.update(pairs)
        self._lids.update({phone: lid for lid, phone in pairs.items()})

    def learn_addressing(self, chat: str, person: Address | None) -> None:
        """Note by which kind of address a chat knows its members: the kind that came with a message."""
        if person is not None and person.is_person:
            (self._lid_chats.add if person.server == LID else self._lid_chats.discard)(chat)

    async def as_in(self, chat: str, person: Address) -> Address:
        """Return the address by which a chat knows a person, or the given one when that cannot be found."""
        if person.server != PHONE or chat not in self._lid_chats:
            return person
        if person.user not in self._lids:
            try:
                async with asyncio.timeout(LOOKUP_SECONDS):
                    found = addresses.of(await self._client.get_lid_from_pn(jid_of(person)))
            except Exception as error:  # noqa: BLE001 - unknown is an answer; the number is understood too
                log.info("no LID for a number: %s", type(error).__name__)
                return person
            if found is None or found.server != LID:
                return person
            self._lids[person.user] = found.user
        return Address(user=self._lids[person.user], server=LID)

    def learn_name(self, address: Address | None, name: str) -> None:
        """Note the name that a person has given themselves."""
        if address is None or not name.strip():
            return
        if len(self._names) > MAX_KNOWN:
            self._names.clear()
        self._names[self.directory.resolved(address).user] = " ".join(name.split())[:80]

    async def look_up(self, people: Iterable[Address]) -> None:
        """Look up the phone numbers of people who are known by LID alone; some may stay unknown."""
        for one in people:
            if one.server == LID and one.user not in self._phones:
                await self._look_up(one)

    async def _look_up(self, one: Address) -> None:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = addresses.of(await self._client.get_pn_from_lid(jid_of(one)))
        except Exception as error:  # noqa: BLE001 - unknown is an answer; the message goes on with what it has
            log.info("no number for a LID: %s", type(error).__name__)
            return
        if found is not None and found.server == PHONE:
            self._phones[one.user] = found.user


def jid_of(address: Address) -> addresses.JidLike:
    """Return an address as the library takes it."""
    from neonize.utils.jid import build_jid

    return build_jid(address.user, address.server)  # type: ignore[no-any-return]
