"""`offline` is a small assistant without a model.

It answers the requests that it recognises, and says so when it recognises none.

`reading` and `wording` parse requests by the patterns of `intents.toml`, in English and Korean. Handlers
carry them out in the group's files (`lists`, `checklists`) or at the host (`board`, `reminders`, `about`).
A handler finds the entry that the request refers to, asks for missing details, makes the change and records
how to undo it. `handler` has their base class; a `ShownEntry` is a task, an entry of a list or a reminder.
`conversation` stores the open questions, `answers` parses the replies to them.

Start with `agent.py`.
"""

from __future__ import annotations

from agent_runner.agents.offline.agent import OfflineAgent

__all__ = ["OfflineAgent"]
