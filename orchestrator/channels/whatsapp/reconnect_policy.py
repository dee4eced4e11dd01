"""Decide when to reconnect after a login ended, and what to advise the owner. Pure."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Return the seconds to wait: 2, 4, 8 and so on up to 300, each shortened at random by up to half.

    The randomness prevents all hosts from reconnecting at the same moment. `failures` counts from 1; `chance`
    is a random number from [0, 1).
    """
    whole = min(FIRST_SECONDS * 2.0 ** min(failures - 1, 20), LONGEST_SECONDS)
    return float(whole * (1 - chance / 2))


def rest_seconds(end: StateReport, *, failures: int, now_ms: int, chance: float) -> float:
    """Return the seconds to wait before the next connection after a login ended with the state `end`."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectAdvice:
    """The message to the owner about the end of a login. If it is grave, waiting alone may not fix it."""

    text: str
    is_grave: bool = True


def advice(end: StateReport) -> ReconnectAdvice:
    """Return one sentence that says what happened and what to do about it."""
    match end.state:
        case "logged_out":
            return ReconnectAdvice(text=f"WhatsApp logged this device out ({end.reason}): pair it"
                          " with the phone again.")  # fmt: skip
        case "banned":
            return ReconnectAdvice(text=f"WhatsApp has banned this account for a while ({end.reason}):"
                          " nothing is sent until the ban is over; write less,"
                          " and to fewer people.")  # fmt: skip
        case "replaced":
            return ReconnectAdvice(text=f"WhatsApp is in use elsewhere with this login ({end.reason}):"
                          " stop the other one.")  # fmt: skip
        case "outdated":
            return ReconnectAdvice(text=f"{end.reason}: upgrade Andy (pip install --upgrade neonize).")
        case "unusable":
            return ReconnectAdvice(text=end.reason)
        case _:
            return ReconnectAdvice(text=f"WhatsApp is not connected: {end.reason}", is_grave=False)
