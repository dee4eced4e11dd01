"""Judge by the owner's list whether the sender of a message may ask the assistant. Pure.

`groups.owner` reads the list from its file.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.domain.values import ChatJid, Inbound, is_hook
from orchestrator.groups.owner import OwnerRules

FILE = "sender-allowlist.json"
NOT_ALLOWED = "sender not allowed"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class SenderRule(_Strict):
    """The people who may ask in a chat, and whether other people's messages are stored."""

    allow: Literal["*"] | frozenset[str]
    """Their ids, exactly as the channel reports them; `*` for everybody."""
    mode: Literal["trigger", "drop"] = "trigger"
    """`trigger`: stored, as context for others' questions. `drop`: not stored."""


class SenderRules(_Strict):
    """The content of the owner's file `sender-allowlist.json`."""

    default: SenderRule = SenderRule(allow="*")
    chats: dict[str, SenderRule] = Field(default_factory=dict)
    """Rules by the chat's address, its present or a former one; each replaces the default rule."""
    log_denied: Annotated[bool, Field(alias="logDenied", strict=True)] = True


class SenderVerdict(StrEnum):
    """The permission of a sender's messages: to start a turn, to be read as context, or to be dropped."""

    ALLOWED = "allowed"
    NO_TRIGGER = "no_trigger"
    DROPPED = "dropped"


def judge(
    message: Inbound, sender_list: OwnerRules[SenderRules], *, former_addresses: Sequence[ChatJid] = ()
) -> SenderVerdict:
    """Return what the sender of a message may do, by the owner's list of senders.

    `former_addresses` are those that the message's chat had before its present one, the latest first: a rule
    for one of them counts while the present address has none.

    The owner may always ask. Without a list everybody else may, too; while the list is broken, nobody else
    may. The list is for people: a hook, an address by which a program sends messages, may ask unless the list
    is broken, since the owner created it.
    """
    if message.is_from_me:
        return SenderVerdict.ALLOWED
    # Before hooks are let in: while the list is broken, nobody but the owner may ask.
    if sender_list.rules is None:
        return SenderVerdict.NO_TRIGGER if sender_list.trouble else SenderVerdict.ALLOWED
    if is_hook(message.sender):
        return SenderVerdict.ALLOWED
    rules = sender_list.rules
    addresses = (message.chat_jid, *former_addresses)
    rule = next((rules.chats[each] for each in addresses if each in rules.chats), rules.default)
    if rule.allow == "*" or message.sender in rule.allow:
        return SenderVerdict.ALLOWED
    return SenderVerdict.DROPPED if rule.mode == "drop" else SenderVerdict.NO_TRIGGER
