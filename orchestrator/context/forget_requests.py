"""Forget a person who requests it in the chat: `@Andy forget me`, `나를 잊어 줘`, and once more to confirm.

No model is involved. The sender is identified by their messenger address alone, not by a name or a text;
nobody, and no webhook, can request it for another person.
"""

from __future__ import annotations

import re
from enum import StrEnum

from agent_runner.wire.unicode_forms import normalized
from orchestrator.base.clock import Clock
from orchestrator.context import person_removal, removal_texts
from orchestrator.domain.values import Group, Inbound, TurnState, is_hook
from orchestrator.groups import people, person_names
from orchestrator.inbound.intake import ReplyAtOnce
from orchestrator.store.database import Tx, announce
from orchestrator.store.people import memory_notes
from orchestrator.store.people import records as person_records
from orchestrator.store.people import removals as person_removals
from orchestrator.store.people.removals import RemovalState
from orchestrator.store.runs import turns

CONFIRM_MS = 15 * 60_000
"""Milliseconds after the request within which it can be confirmed."""
MAX_CHARS = 200
"""Characters of the longest message that can be such a request."""
_UNSEEN = re.compile("[\u200b-\u200f\u2060-\u2064\ufe0e\ufe0f\ufeff]")
_POLITE = r"(?:(?:please|pls|ok|okay|andy|hey|now) )*"
_END = r"(?: (?:please|pls|now|completely|for good|forever|thanks|thank you))*"
# "please forget me", "Yes, erase everything about me now".
_ENGLISH = re.compile(
    rf"(?P<yes>(?:yes|yeah|yep|sure) )?{_POLITE}(?:forget|erase)"
    rf" (?:me|(?:all|everything)(?: that)?(?: you know)? about me){_END}"
)
# Without spaces: "나를잊어줘" (forget me), "네제발저에대해모두지워주세요" (yes, please erase all about me).
_KOREAN = re.compile(
    r"(?P<yes>네|예|응|그래)?(?:이제|제발|좀)*"
    r"(?:(?:나|저)(?:를|을)?|날|절)(?:(?:에)?(?:대해|대한것|대한거|관한것)(?:을|를|서)?)?(?:좀|다|모두|전부|완전히)*"
    r"(?:잊어|잊어버려|지워)(?:줘요?|주세요|주라|라|요)?"
)
# "forget everything about Mina", "미나님을 잊어 줘".
_OTHER = re.compile(
    rf"{_POLITE}(?:forget|erase)(?: (?:all|everything)(?: you know)? about)? (?P<name>\S.*?){_END}"
    r"|(?P<korean>\S.*?)(?:님|씨)?(?:을|를)? (?:좀 |다 |모두 )*(?:잊어|지워)(?: ?(?:줘요?|주세요|버려))?"
)
_HANGUL = re.compile("[ㄱ-ㅎㅏ-ㅣ가-힣]")


class Wish(StrEnum):
    """A whole message that requests to be forgotten, or confirms it."""

    FORGET = "forget"
    CONFIRM = "confirm"


class ForgetRequests:
    """Handles messages in which the sender requests to be forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def answer(
        self, tx: Tx, group: Group, message: Inbound, text: str, *, is_asked: bool
    ) -> ReplyAtOnce | None:
        """Return the reply to a message by which its sender wants to be forgotten; None for other messages.

        A first request is only recorded: the reply asks the sender to confirm it. A confirmation within
        `CONFIRM_MS` makes the removal due, and it is carried out soon; a later one counts as a first request.
        While a removal is due, a repeated request gets the reply to a confirmation. A request to forget
        somebody else is refused. Reactions, messages of hooks and those longer than `MAX_CHARS` are no
        requests. `text` is the message without the words that call Andy; `is_asked` says whether the message
        calls Andy.
        """
        if message.reaction or not is_asked or is_hook(message.sender) or len(text) > MAX_CHARS:
            return None
        is_korean = _HANGUL.search(text) is not None
        wish = read(text)
        if wish is None:
            is_for_another = await _requests_for_another(tx, group, text)
            return _reply(removal_texts.only_oneself(is_korean=is_korean)) if is_for_another else None
        addresses = await people.addresses_of(tx, message.sender)
        # A messenger may know one person by two addresses.
        if message.sender_alias is not None:
            addresses |= await people.addresses_of(tx, message.sender_alias)
        now_ms = self._clock.now_ms()
        removals = await person_removals.of_person(tx, group.folder, addresses)
        # A removal that is due was confirmed, and only waits for a turn to end.
        is_due = any(removal.state is RemovalState.DUE for removal in removals)
        is_requested = any(now_ms - removal.at_ms <= CONFIRM_MS for removal in removals)
        is_sure = is_due or (wish is Wish.CONFIRM and is_requested)
        if not is_due:
            await person_removal.request(
                tx,
                group,
                addresses,
                by=message.sender,
                chat_jid=message.chat_jid,
                is_sure=is_sure,
                now_ms=now_ms,
            )
        if is_sure:
            announce(tx, person_removal.DUE, group=group.folder)
            unsettled_turns = await turns.unsettled_of(tx, group.folder)
            is_busy = any(turn.state is TurnState.RUNNING for turn in unsettled_turns)
            return _reply(removal_texts.accepted(is_busy=is_busy, is_korean=is_korean))
        # The notes that the removal would delete: those about the person, and those that only they said.
        notes = [
            each
            for each in await memory_notes.of_group(tx, group.folder)
            if each.is_forgotten_with(addresses)
        ]
        count = await person_records.count_messages(tx, group.folder, addresses)
        return _reply(removal_texts.question(messages=count, notes=len(notes), is_korean=is_korean))


def read(text: str) -> Wish | None:
    """Return whether a message, as a whole, requests that its sender be forgotten, or confirms that.

    None if it does neither. Pure.
    """
    plain = _plain_text(text)
    # Without spaces, because Koreans put them differently in such a sentence.
    match = _ENGLISH.fullmatch(plain) or _KOREAN.fullmatch(plain.replace(" ", ""))
    if match is None:
        return None
    return Wish.CONFIRM if match["yes"] else Wish.FORGET


async def _requests_for_another(tx: Tx, group: Group, text: str) -> bool:
    """Return whether a message, as a whole, requests to forget a person of the group by name or address."""
    match = _OTHER.fullmatch(_plain_text(text))
    if match is None:
        return False
    # "forget Mina please" has the name in the group `name`, "미나를 잊어 줘" in the group `korean`. It may be
    # written as a mention, `@Mina`.
    folded_name = person_names.folded((match["name"] or match["korean"]).removeprefix("@"))
    return any(
        folded_name in {person_names.folded(person.name), *map(person_names.folded, person.addresses)} - {""}
        for person in await people.known_people(tx, group.folder)
    )


def _plain_text(text: str) -> str:
    """Return a text in lower case, without invisible characters, commas, extra spaces and end punctuation."""
    visible = _UNSEEN.sub("", normalized("NFKC", text.strip()))
    return " ".join(visible.replace(",", " ").lower().split()).strip(" .!~…。")


def _reply(text: str) -> ReplyAtOnce:
    """Return a reply that the host gives itself, to a message that no agent gets to read."""
    return ReplyAtOnce(text, is_for_host=True)
