"""One request on its way to an answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from agent_runner.agents.offline.words import Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who asked, when, and in which words to answer.

    `request_id` is the same when the turn is tried again, so that the host does nothing twice.
    """

    sender: str
    now: datetime
    words: Words
    request_id: str
