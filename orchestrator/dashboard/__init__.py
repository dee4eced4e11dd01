"""The dashboard of a group: its tasks, questions, notifications and insights.

Start with `service.py`, which is the way in. Each package knows only those below it: `files/`, `delivery/`
and `worker/`, which do not know each other, over `services/`, which change a dashboard; then `views/`,
`rules/` and `words/`, which change nothing.
"""
