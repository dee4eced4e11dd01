"""`offline` is a small assistant without a model. It answers what it knows and never pretends.

The patterns of `intents.toml` read what is asked (`reading`, `wording`: pure, English and Korean).
It is done through the group's files (`lists`, `checklists`) or the host (`board`, `reminders`,
`host_requests`). `conversation` keeps what was asked and takes the answer.

Start with `agent.py`.
"""

from __future__ import annotations

from agent_runner.agents.offline.agent import OfflineAgent

__all__ = ["OfflineAgent"]
