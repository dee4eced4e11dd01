"""Apply the owner's answers in the main chat to requests.

Requests of agents: `allow 7`, `always allow 7`, `refuse 7`, `refuse all`, `refuse all FOLDER`.

Requests of chats that call Andy and have no group: `register 3`, `register 3 as NAME`, `ignore 3`,
`ignore all`, `block 3`.
"""

from __future__ import annotations

import re

from orchestrator.base.tables import counted
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Group, Role
from orchestrator.groups import access
from orchestrator.groups.access import (
    AccessDecision,
    AccessIsDecided,
    DecidedAccess,
    UnknownAccessRequest,
)
from orchestrator.groups.name_and_trigger import MAX_NAME_CHARS, NameTaken, ProfileRefused
from orchestrator.groups.roles import RULES, Permission
from orchestrator.proxies import approvals
from orchestrator.proxies.approvals import ApprovalIsOver, Decision, UnknownApproval
from orchestrator.store.access import approvals as requests
from orchestrator.store.access.approvals import ApprovalState
from orchestrator.store.access.requests import AccessState
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups

_ANSWER = re.compile(
    r"(?:(?P<always>always allow|allow always|항상 허용)|(?P<allow>allow|허용)|(?P<refuse>refuse|거절))"
    r" #?(?P<number>[0-9]{1,15})번?[.!]?",
    re.IGNORECASE,
)
_REFUSE_ALL = re.compile(
    r"(?P<command>refuse all|모두 거절|전부 거절)(?: (?P<folder>[^ .!]+))?[.!]?", re.IGNORECASE
)
_ACCESS = re.compile(
    r"(?:(?P<register>register|등록)|(?P<ignore>ignore|무시)|(?P<block>block|차단))"
    r" #?(?P<number>[0-9]{1,15})번?(?:[.!]?|(?: as| 이름) (?P<name>.+))",
    re.IGNORECASE,
)
_IGNORE_ALL = re.compile(r"(?:ignore all|모두 무시|전부 무시)[.!]?", re.IGNORECASE)
DECIDER = "the main chat"
"""The name stored with a decision that was made in the main chat."""
_KOREAN = {
    "allow": "허용했습니다",
    "always": "앞으로 늘 허용합니다",
    "refuse": "거절했습니다",
}
_KOREAN_STATES = {
    ApprovalState.ONCE: "허용",
    ApprovalState.ALWAYS: "항상 허용",
    ApprovalState.USED: "허용, 이미 사용",
    ApprovalState.REFUSED: "거절",
}


async def answer(tx: Tx, group: Group, text: str, *, role: Role, now_ms: int) -> str | None:
    """Carry out the decision in an owner's message, such as `allow 7` or `register 3`, and return the reply.

    `refuse all` and `ignore all` decide all waiting requests of agents or of chats at once. The message
    counts only in the main group, from a person who may give commands there, and if it is nothing but the
    decision: a sentence that contains one is for the agent. None for any other message, and if there is no
    such request.

    Args:
        tx: the transaction.
        group: the group of the chat.
        text: the text of the message, without a call of the assistant.
        role: the sender's role.
        now_ms: the present time, in epoch milliseconds.
    """
    if not group.is_main or Permission.COMMAND not in RULES[role].may:
        return None
    words = " ".join(text.split())
    if (refuse_all := _REFUSE_ALL.fullmatch(words)) is not None:
        is_korean = not refuse_all["command"].isascii()
        return await _refuse_all(tx, refuse_all["folder"], is_korean=is_korean, now_ms=now_ms)
    if _IGNORE_ALL.fullmatch(words) is not None:
        return await _ignore_all(tx, is_korean=not words.isascii(), now_ms=now_ms)
    if (match := _ACCESS.fullmatch(words)) is not None:
        return await _decide_access(tx, match, now_ms=now_ms)
    match = _ANSWER.fullmatch(words)
    return None if match is None else await _decide(tx, match, now_ms=now_ms)


async def _decide(tx: Tx, match: re.Match[str], *, now_ms: int) -> str | None:
    """Decide a request of an agent as a match of `_ANSWER` says: allow, always allow its kind, or refuse.

    Return the reply, or None if no request has the number.
    """
    decision: Decision = "always" if match["always"] else "allow" if match["allow"] else "refuse"
    number, is_korean = int(match["number"]), not match[0].isascii()
    try:
        decided = await approvals.decide(tx, number, decision, by=DECIDER, now_ms=now_ms)
    except UnknownApproval:
        return None
    except ApprovalIsOver as over:
        return await _over_in_korean(tx, number) if is_korean else str(over)
    if is_korean:
        return f"{_KOREAN[decision]}: {approvals.subject_of(decided)} ({decided.folder})."
    return f"{approvals.outcome(decided)}: {approvals.subject_of(decided)} for '{decided.folder}'."


async def _over_in_korean(tx: Tx, number: int) -> str:
    """Return the reply, in Korean, that the request `number` has lapsed or was decided already."""
    request = await requests.get(tx, number)
    decision = None if request is None else _KOREAN_STATES.get(request.state)
    state_text = "시간이 지났습니다" if decision is None else f"이미 결정되었습니다 ({decision})"
    return f"{number}번 요청은 {state_text}. 필요하면 에이전트가 다시 묻습니다."


async def _refuse_all(tx: Tx, folder: str | None, *, is_korean: bool, now_ms: int) -> str | None:
    """Refuse every waiting request of agents in the group with this folder, or in all groups for None.

    Return the reply, in Korean if `is_korean`. None if there is no such group.
    """
    group = await groups.by_folder(tx, folder) if folder is not None else None
    if folder is not None and group is None:
        return None
    waiting = await requests.waiting(tx, group.folder if group is not None else None, now_ms=now_ms)
    for request in waiting:
        await approvals.decide(tx, request.id, "refuse", by=DECIDER, now_ms=now_ms)
    if is_korean:
        return f"거절했습니다: 요청 {len(waiting)}개." if waiting else "기다리는 요청이 없습니다."
    return f"Refused: {counted(len(waiting), 'request')}." if waiting else "No request waits."


async def _decide_access(tx: Tx, match: re.Match[str], *, now_ms: int) -> str | None:
    """Decide about a chat without a group that called Andy, as a match of `_ACCESS` says.

    The chat gets a group, is ignored for some days, or is blocked. Return the reply. None if no request has
    the number, or if a chat that has a group already is to be ignored or blocked.
    """
    decision: AccessDecision = "register" if match["register"] else "ignore" if match["ignore"] else "block"
    number, name = int(match["number"]), match["name"]
    is_korean = not (match["register"] or match["ignore"] or match["block"]).isascii()
    try:
        decided = await access.decide(tx, number, decision, by=DECIDER, now_ms=now_ms, name=name)
    except UnknownAccessRequest:
        return None
    except BadRequest as error:
        # A chat that has a group cannot be ignored: the number belongs to another list, such as the agent's.
        if isinstance(error, AccessIsDecided) and decision != "register":
            return None
        return _error_in_korean(error, number, decision) if is_korean else str(error)
    return _in_korean(decided) if is_korean else decided.explain()


async def _ignore_all(tx: Tx, *, is_korean: bool, now_ms: int) -> str | None:
    """Ignore every chat without a group that called Andy and waits for a decision.

    Return the reply, in Korean if `is_korean`. None if no chat waits, since the message then means something
    else.
    """
    ignored = await access.ignore_all(tx, by=DECIDER, now_ms=now_ms)
    if not ignored:
        return None
    if is_korean:
        return f"대화 {ignored}개를 무시했어요."
    return f"Ignored: {counted(ignored, 'chat')}."


def _error_in_korean(error: BadRequest, number: int, decision: AccessDecision) -> str:
    """Return the reply, in Korean, that a decision about the request `number` cannot be carried out."""
    if isinstance(error, AccessIsDecided):
        return f"{number}번 요청은 이미 결정되었어요. 그 대화에는 그룹이 있어요."
    if decision != "register":
        return "이름은 등록할 때만 붙일 수 있어요. 이름을 빼 주세요."
    if isinstance(error, NameTaken):
        return f"'{error.folder}' 그룹이 이미 이 이름을 써요. 다른 이름을 골라 주세요."
    if isinstance(error, ProfileRefused):
        return f"이 이름은 쓸 수 없어요. 이름은 1자에서 {MAX_NAME_CHARS}자까지예요."
    return str(error)  # not about the decision's words


def _in_korean(decided: DecidedAccess) -> str:
    """Return the reply to a decision about an unknown chat, in Korean."""
    name, group = access.label(decided.request), decided.group
    if group is not None:
        answers = "저를 부르면 대답할게요" if group.requires_trigger else "모든 메시지에 대답할게요"
        return f"등록했어요: {name} 대화는 이제 '{group.folder}' 그룹이에요. {answers}."
    if decided.request.state is AccessState.BLOCKED:
        return f"차단했어요: {name} 대화는 다시 묻지 않을게요."
    return f"무시했어요: {name} 대화는 {access.IGNORED_MS // access.DAY_MS}일 동안 묻지 않을게요."
