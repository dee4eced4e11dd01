"""`offline`: a small assistant without a model. It answers what it knows and never pretends.

A request is read (`reading`: pure, English and Korean), its time is resolved (`dates`: pure), and what
it wishes is done through the group's files (`checklists`) or the host (`reminders`, `groups`).

Start with `agent.py`.
"""

from __future__ import annotations

from agent_runner.agents.offline.agent import OfflineAgent

__all__ = ["OfflineAgent"]
