"""Undo in the chat, when somebody asks for it: `@Andy undo that`, a reply "undo" to an answer, `되돌려 줘`.

No model is needed. Without a reply it means the last turn of the chat with an effect, which may itself be an
undo. Only the people who asked in that turn, or somebody with more rights, may undo it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_runner.wire.unicode_forms import normalized
from orchestrator.base.tables import short
from orchestrator.domain.values import Group, Inbound, Role, Turn, TurnId, rank
from orchestrator.groups import people, roles
from orchestrator.inbound.intake import ReplyAtOnce
from orchestrator.store.conversation import messages, outbox
from orchestrator.store.database import Tx
from orchestrator.store.runs import turns
from orchestrator.store.undo import undos
from orchestrator.undo import texts
from orchestrator.undo.service import BuiltOn, NothingToUndo, NotYet, SomethingInPlace, UndoService

REASON = "without an agent"
MAX_ASKERS, MAX_NAMES, MAX_NAME_CHARS = 200, 3, 40
"""Most requests of a turn that are looked at, and most names, and characters of a name, in a refusal."""
_UNSEEN = re.compile("[\u200b-\u200f\u2060-\u2064\ufe0e\ufe0f\ufeff]")
_ENGLISH = re.compile(
    r"(?:(?:ok|okay|please|pls|no|oops|whoops|andy) )*"
    r"(?:(?:undo|revert|(?P<redo>redo))(?: (?:it|that|this|the undo|all (?:of )?(?:it|that)"
    r"|(?:the|your) last (?:one|thing|change)|what you (?:just )?did))?"
    r"|(?:take|put) (?:it|that|this) back)"
    r"(?P<forced> (?:anyway|all the same|anyhow))?(?: (?:please|pls|now|thanks|thank you))*"
)
_KOREAN = re.compile(
    r"(?:아니야?|앗|이제|좀)*(?P<forced>그래도)?(?:방금)?(?:한)?(?:그거|이거|그것|이것|거|것|일)?(?:을|를|은|는)?(?:좀)?(?:다)?"
    r"(?:(?:되|돼)돌려|되돌리기|되돌리자|실행취소|원래대로(?:해|돌려)?|무르기|물러)"
    r"(?:놔|놓아|둬)?(?:줘요?|주세요|요|라)?"
    r"|방금(?:한)?(?:거|것|일)(?:을|를)?(?:취소해|지워|빼)(?:줘요?|주세요|요|라)?"
)
_HANGUL = re.compile("[ㄱ-ㅎㅏ-ㅣ가-힣]")


class UndoRequests:
    """Undoes the turn that a message refers to, if it asks for that."""

    def __init__(self, service: UndoService) -> None:
        self._service = service

    async def answer(
        self, tx: Tx, group: Group, message: Inbound, text: str, *, is_asked: bool, role: Role
    ) -> ReplyAtOnce | None:
        """If a message asks to undo something, do that and return the reply; for any other, return None.

        `text` is the message without the words that address Andy. `is_asked` says whether the message is for
        Andy. A reaction with an emoji asks for nothing. `role` is the sender's.
        """
        request = None if message.reaction or not is_asked else read(text)
        if request is None:
            return None
        is_korean = _HANGUL.search(text) is not None
        try:
            return await self._undo(tx, group, message, request, role, is_korean=is_korean)
        except NotYet:
            return _reply(texts.busy(is_korean=is_korean))

    async def _undo(
        self, tx: Tx, group: Group, message: Inbound, request: RequestedUndo, role: Role, *, is_korean: bool
    ) -> ReplyAtOnce | None:
        """Undo the turn that a message refers to, and return the reply with the outcome or the refusal.

        Return None if there is no such turn, if it had no effect, not even one that cannot be undone, or if
        "redo" does not refer to an undo: then the agent answers the message. Raises `NotYet` while a turn of
        the group runs.
        """
        turn = await self._find_turn(tx, group, message)
        if turn is None or (request.is_redo and await undos.get(tx, turn.id) is None):
            return None
        # None if the sender may undo the turn; else the names of those who may.
        if (names := await _allowed_instead(tx, group, message, turn, role)) is not None:
            return _reply(texts.only(names, is_korean=is_korean))
        try:
            done = await self._service.undo(
                tx, turn, by=message.sender, is_forced=request.is_forced, reason=REASON
            )
        except BuiltOn as error:
            return _reply(texts.built_on(error.plan, is_korean=is_korean))
        except SomethingInPlace:
            return _reply(texts.something_in_place(is_korean=is_korean))
        except NothingToUndo:
            plan = await self._service.plan(tx, turn)
            # Without anything to undo, the agent may know better what was meant.
            return _reply(texts.nothing(plan, is_korean=is_korean)) if plan.outside else None
        return _reply(texts.done(done.plan, is_korean=is_korean), turn_id=done.turn_id)

    async def _find_turn(self, tx: Tx, group: Group, message: Inbound) -> Turn | None:
        """Return the turn that a message refers to, or None if there is none.

        That is the turn of the quoted message; without a quote, it is the last turn of the chat with an
        effect.
        """
        if message.quote is not None:
            number = await _turn_of_quoted(tx, message)
            turn = await turns.get(tx, number) if number is not None else None
            # A quote is only its sender's claim: a message of another group's chat is ignored.
            return turn if turn is not None and turn.folder == group.folder else None
        return await self._service.last(tx, group.folder, chat_jid=message.chat_jid)


def _reply(text: str, *, turn_id: TurnId | None = None) -> ReplyAtOnce:
    """Return a reply by the host itself.

    `is_for_host` says that the request was for the host. It is then not shown to the agent, which could undo
    once more.

    `turn_id` is the turn of the undo; None if nothing was undone.
    """
    return ReplyAtOnce(text, turn_id=turn_id, is_for_host=True)


@dataclass(frozen=True, slots=True)
class RequestedUndo:
    """An undo that a message requests."""

    is_forced: bool
    """Whether to overwrite later changes, too."""
    is_redo: bool
    """Whether it can only mean the undo of an undo: otherwise "redo it" asks to do it once more."""


def read(text: str) -> RequestedUndo | None:
    """Return the undo that a message requests, in English or Korean; None if it requests none. Pure.

    The whole message has to be such a request: a sentence that only contains the word is none.
    """
    visible = _UNSEEN.sub("", normalized("NFKC", text.strip()))
    words = " ".join(visible.replace(",", " ").lower().split()).strip(" .!~…。?")
    # Blanks are left out in Korean, where people set them differently.
    match = _ENGLISH.fullmatch(words) or _KOREAN.fullmatch(words.replace(" ", ""))
    if match is None:
        return None
    # Only the English pattern has the group `redo`.
    return RequestedUndo(match["forced"] is not None, is_redo=match.groupdict().get("redo") is not None)


async def _turn_of_quoted(tx: Tx, message: Inbound) -> TurnId | None:
    """Return the id of the turn of the message that `message` quotes; None if it is not known.

    For a quoted message of Andy's, that is the turn that sent it; for one of a person, the turn that includes
    it.
    """
    assert message.quote is not None
    sent = await outbox.by_message_id(tx, message.quote.message_id)
    if sent is not None:
        return sent.turn_id
    quoted = await messages.find(tx, message.chat_jid, message.quote.message_id)
    return quoted.turn_id if quoted is not None else None


async def _allowed_instead(tx: Tx, group: Group, message: Inbound, turn: Turn, role: Role) -> str | None:
    """Return None if the sender of `message` may undo a turn; else the names of the people who may.

    Those are the people who asked in the turn. People with a higher role may undo it, too, but are not named.
    """
    requests = await messages.requests_of(tx, turn.id, limit=MAX_ASKERS)
    # Somebody with a lesser role than when they asked may not change again what they could change then. The
    # rank of a role is 0 for the one with most rights.
    is_only_asker = rank(role) <= rank(turn.role) and await people.asked_alone(tx, requests, message)
    if roles.speaks_for(role, await people.roles_in(tx, group, requests), is_only_asker=is_only_asker):
        return None
    names = sorted({short(request.sender_name, MAX_NAME_CHARS) for request in requests})
    return ", ".join(names[:MAX_NAMES])
