"""Decide when to reconnect after a login ended, and what to advise the owner. Pure."""

from __future__ import annotations

from orchestrator.base.backoff import doubled_pause
from orchestrator.channels.whatsapp.description import CHANNEL
from orchestrator.channels.whatsapp.protocol import State, StateReport

FIRST_SECONDS = 2.0
"""Seconds of the pause after the first failure, before it is shortened at random."""
LONGEST_SECONDS = 300.0
"""Seconds of the longest pause between two tries."""
START_SECONDS = 90.0
"""Seconds that a bridge may take to connect; loading the library takes 20 s of them on a small machine."""
GRACE_SECONDS = 30.0
"""Seconds that the library may take to restore a broken connection by itself."""
REPLACED_SECONDS = 600.0
"""Seconds to wait after another host connected with the same login.

Each of the two disconnects the other, so a long pause makes that happen rarely.
"""
OUTDATED_SECONDS = 6 * 3600.0
"""Seconds to wait after WhatsApp refused the library's version."""
UNUSABLE_SECONDS = 600.0
"""Seconds to wait after the library could not be loaded."""
LEAST_BAN_SECONDS = 600.0
"""Seconds to wait after a ban, if it ends earlier than that."""
LOGGED_OUT_SECONDS = 600.0
"""Seconds to wait after WhatsApp logged the device out."""

FINAL: frozenset[State] = frozenset({"logged_out", "banned", "replaced", "outdated", "unusable"})
"""States from which the library does not recover by itself."""


def pause_seconds(failures: int, *, chance: float) -> float:
    """Return the seconds to wait before connecting again: 2, 4, 8 and so on up to 300, after each failure.

    Each wait is shortened at random by up to half, so that not all hosts reconnect at the same moment.
    `failures` is the number of failures in a row, from 1 on; `chance` is a random number from [0, 1).
    """
    return doubled_pause(FIRST_SECONDS, LONGEST_SECONDS, failures=failures) * (1 - chance / 2)


def wait_seconds_after(end: StateReport, *, failures: int, now_ms: int, chance: float) -> float:
    """Return the seconds to wait before the next connection, after one ended with the state `end`.

    After a ban it is the time until its end, but at least `LEAST_BAN_SECONDS`. `failures` is the number of
    failed connections in a row, and `chance` a random number from [0, 1): both count only after a state that
    has no fixed wait.
    """
    match end.state:
        case "logged_out":
            return LOGGED_OUT_SECONDS
        case "banned":
            return max(LEAST_BAN_SECONDS, (end.until_ms - now_ms) / 1000)
        case "replaced":
            return REPLACED_SECONDS
        case "outdated":
            return OUTDATED_SECONDS
        case "unusable":
            return UNUSABLE_SECONDS
        case _:
            return pause_seconds(failures, chance=chance)


def advice(end: StateReport) -> str:
    """Return the English advice of the channel's description about how a connection ended, in one sentence.

    `end` is the last state that the bridge process reported, with the reason.
    """
    # Without the library there is nothing to connect, and the reason names what to install.
    if end.state == "unusable":
        return end.reason
    text = CHANNEL.advice.get(end.state, CHANNEL.advice["disconnected"])["en"]
    return text.format(reason=end.reason)
