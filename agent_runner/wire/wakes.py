"""The limits of the time at which an agent asks to wake next, and the texts that explain them to a model.

Both sides use these numbers, so that no prompt promises what the host does not do.
"""

from __future__ import annotations

MIN_MINUTES = 2
MAX_HOURS = 4
"""Most hours that an agent may sleep; `MIN_MINUTES` is the least in minutes."""
MAX_REASON_CHARS = 200
"""Most characters of the reason for a sleep."""

GUIDANCE = (
    'End with [SCHEDULE next="45m" reason="waiting for feedback"] to wake then '
    f'({MIN_MINUTES}m-{MAX_HOURS}h). Or "5m": research goes on; "2h": night, nothing pending. '
    "Nobody sees it; left out, the pause is automatic."
)
"""The end of each prompt of the loop: at most 200 characters, as each turn pays for them."""
NEXT = (
    f"The time to sleep from the end of this turn, such as 30m, 2h, 1h30m: at least {MIN_MINUTES}m and at "
    f"most {MAX_HOURS}h; other values are set to these bounds, and the reply says so. 'now': {MIN_MINUTES}m."
)
