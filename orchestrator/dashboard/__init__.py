"""What a group has to do, what is open, what it is told at a time and what it has learned.

`desk.py` is the way in. Each room knows only those below it: `files/`, `delivery/` and `upkeep/`, which
are strangers, over `services/`, which change a dashboard; then `views/`, `rules/` and `words/`, which
change nothing.
"""
