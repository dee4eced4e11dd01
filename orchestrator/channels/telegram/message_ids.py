"""Tell the messages of several bots apart, which Telegram numbers from 1 on for each bot.

That is so in chats between two and in simple groups; the numbers of a supergroup are the same for all bots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.channels.telegram.description import CHANNEL, PREFIX
from orchestrator.domain.values import ChatJid, MessageId
from orchestrator.store.conversation import chats
from orchestrator.store.database import Tx

FIRST_BOT = f"{CHANNEL.name}.first_bot"
"""The name under which the id of the first bot is stored, whose messages have no ending in their ids."""
LAST_SUPERGROUP = -(10**12)
"""The numbers of supergroups are below this one."""
_ID = re.compile(r"([0-9]{1,18})(?:\.[0-9]{1,18})?(\.b[0-9]{1,20})?")


@dataclass(frozen=True, slots=True)
class MessageIds:
    """The ids under which the host knows the messages that one bot sees.

    An id is Telegram's number; an edit has its time behind a dot. A bot that is not the first of its home has
    an `ending`, such as `.b123456`.
    """

    ending: str = ""

    def id_of(self, jid: ChatJid, number: str | int) -> MessageId:
        """Return the id of a message in the chat `jid`. `number` is Telegram's number, or that of an edit."""
        return MessageId(f"{number}{self._ending_in(jid)}")

    def number_of(self, jid: ChatJid, message_id: MessageId) -> int | None:
        """Return Telegram's number of a message in the chat `jid`; None if it has none for this bot."""
        match = _ID.fullmatch(message_id)
        return int(match[1]) if match and (match[2] or "") == self._ending_in(jid) else None

    def _ending_in(self, jid: ChatJid) -> str:
        """Return the ending of ids in the chat `jid`: none in a supergroup."""
        return "" if int(jid.removeprefix(PREFIX)) < LAST_SUPERGROUP else self.ending


async def of_bot(tx: Tx, bot_id: int) -> MessageIds:
    """Return how ids of a bot's messages are formed; those of the home's first bot have no ending `.b…`.

    If no first bot is stored yet, one is stored: the bot that was used before, else this one.
    """
    first_bot = await chats.cursor(tx, FIRST_BOT)
    if first_bot is None:
        # An earlier version stored no first bot, but the position in the stream of updates names the last.
        position = await chats.cursor(tx, CHANNEL.name) or ""
        first_bot = position.partition(" ")[0] or str(bot_id)
        await chats.set_cursor(tx, FIRST_BOT, first_bot)
    return MessageIds("" if first_bot == str(bot_id) else f".b{bot_id}")
