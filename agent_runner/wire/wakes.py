"""How an agent says when it wants to wake next: the bounds, and the words that tell of them.

Both sides make what they say of these numbers, so that no prompt promises what the host does not do.
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
"""What a prompt of the loop ends with."""
NEXT = (
    f"How long to sleep from the end of this turn: such as 30m, 2h, 1h30m, at least {MIN_MINUTES}m and "
    f"at most {MAX_HOURS}h; what lies outside is brought inside, and you are told. 'now': {MIN_MINUTES}m."
)
