"""`offline` is a small assistant without a model. It answers what it knows and never pretends.

`reading` and `wording` parse requests by the patterns of `intents.toml`, in English and Korean. Handlers
carry them out in the group's files (`lists`, `checklists`) or at the host (`board`, `reminders`, `about`).
Each finds the entry that is meant, asks for what is unclear, does it, and records how to undo it: `handler`
has what they share, and a `ShownEntry` represents a task, an entry of a list or a reminder. `conversation`
stores the open questions, `answers` reads the answers to them.

Start with `agent.py`.
"""

from __future__ import annotations

from agent_runner.agents.offline.agent import OfflineAgent

__all__ = ["OfflineAgent"]
