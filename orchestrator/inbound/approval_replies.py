"""Take what the owner answers in main to the request of an agent: `allow 7`, `always allow 7`, `refuse 7`."""

from __future__ import annotations

import re

from orchestrator.domain.values import Group
from orchestrator.proxies import approvals
from orchestrator.proxies.approvals import ApprovalIsOver, Decision, UnknownApproval
from orchestrator.store import approvals as requests
from orchestrator.store import groups
from orchestrator.store.database import Tx

_ANSWER = re.compile(
    r"(?:(?P<always>always allow|allow always|항상 허용)|(?P<allow>allow|허용)|(?P<refuse>refuse|거절))"
    r" #?(?P<number>[0-9]{1,15})번?[.!]?",
    re.IGNORECASE,
)
_REFUSE_ALL = re.compile(r"(?:refuse all|모두 거절|전부 거절)(?: (?P<folder>[^ .!]+))?[.!]?", re.IGNORECASE)
DECIDER = "the main chat"
_KOREAN = {
    "allow": "허용했습니다",
    "always": "앞으로 늘 허용합니다",
    "refuse": "거절했습니다",
}


async def answer(tx: Tx, group: Group, text: str, *, now_ms: int) -> str | None:
    """Decide as a message of main says and return the reply; None of any other message.

    The whole message has to be the answer: a sentence that has one in it is for the agent.
    """
    if not group.is_main:
        return None
    words = " ".join(text.split())
    if (everything := _REFUSE_ALL.fullmatch(words)) is not None:
        return await _refuse_all(tx, everything["folder"], now_ms=now_ms)
    found = _ANSWER.fullmatch(words)
    if found is None:
        return None
    decision: Decision = "always" if found["always"] else "allow" if found["allow"] else "refuse"
    try:
        decided = await approvals.decide(tx, int(found["number"]), decision, by=DECIDER, now_ms=now_ms)
    except UnknownApproval:
        return None
    except ApprovalIsOver as over:
        return str(over)
    if not found[0].isascii():
        return f"{_KOREAN[decision]}: {approvals.subject_of(decided)} ({decided.folder})."
    return f"{approvals.outcome(decided)}: {approvals.subject_of(decided)} for '{decided.folder}'."


async def _refuse_all(tx: Tx, name: str | None, *, now_ms: int) -> str | None:
    """Refuse every request that waits, of one group or of all; None where it names no group."""
    group = await groups.by_folder(tx, name) if name is not None else None
    if name is not None and group is None:
        return None
    waiting = await requests.waiting(tx, group.folder if group is not None else None, now_ms=now_ms)
    for one in waiting:
        await approvals.decide(tx, one.id, "refuse", by=DECIDER, now_ms=now_ms)
    return f"Refused: {len(waiting)} requests." if waiting else "No request waits."
