"""`offline` is a small assistant without a model. It answers what it knows and never pretends.

`reading` and `wording` read what is asked by the patterns of `intents.toml`, in English and Korean.
Handlers carry it out in the group's files (`lists`, `checklists`) or at the host (`board`, `reminders`,
`about`). Each finds what is meant, asks for what is not clear, does it, and remembers how it is taken back:
`handler` has what they share, and a `ShownEntry` stands for a task, an entry of a list or a reminder.
`conversation` keeps the open questions, `answers` reads the answers to them.

Start with `agent.py`.
"""

from __future__ import annotations

from agent_runner.agents.offline.agent import OfflineAgent

__all__ = ["OfflineAgent"]
