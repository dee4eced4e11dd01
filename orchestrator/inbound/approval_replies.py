"""Take what the owner answers in main to the request of an agent: `allow 7`, `always allow 7`, `refuse 7`."""

from __future__ import annotations

import re

from orchestrator.domain.values import Group
from orchestrator.proxies import approvals
from orchestrator.proxies.approvals import ApprovalIsOver, Decision, UnknownApproval
from orchestrator.store.database import Tx

_ANSWER = re.compile(
    r"(?:(?P<always>always allow|allow always|항상 허용)|(?P<allow>allow|허용)|(?P<refuse>refuse|거절))"
    r" #?(?P<number>[0-9]{1,15})번?[.!]?",
    re.IGNORECASE,
)
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
    found = _ANSWER.fullmatch(" ".join(text.split())) if group.is_main else None
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
        return f"{_KOREAN[decision]}: {decided.subject} ({decided.folder})."
    return f"{approvals.outcome(decided)}: {decided.subject} for '{decided.folder}'."
