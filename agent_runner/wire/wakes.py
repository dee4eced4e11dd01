"""The bounds of the time at which an agent asks to wake next, and the texts that explain them to a model.

Both sides use these numbers, so that no prompt promises what the host does not do.
"""

from __future__ import annotations

MIN_MINUTES = 2
MAX_HOURS = 4
MAX_REASON_CHARS = 200

GUIDANCE = (
    'To say when you wake next, end with [SCHEDULE next="30m" reason="…"], which nobody sees. '
    f"From {MIN_MINUTES}m to {MAX_HOURS}h; it counts once, from the end of this turn. "
    'Examples: next="45m" reason="waiting for feedback"; next="5m" reason="going on with the research"; '
    'next="2h" reason="night, nothing is pending". Without it, the pause is chosen for you: longer each time '
    "nothing was to do."
)
"""The end of each prompt of the loop."""
NEXT = (
    f"How long to sleep from the end of this turn: such as 30m, 2h, 1h30m, at least {MIN_MINUTES}m and "
    f"at most {MAX_HOURS}h; what lies outside is brought inside, and you are told. 'now': {MIN_MINUTES}m."
)
