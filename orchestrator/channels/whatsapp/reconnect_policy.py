"""Decide when to try again after a login ended, and what the owner should do about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.channels.whatsapp.protocol import State, StateReport

FIRST_SECONDS = 2.0
LONGEST_SECONDS = 300.0
START_SECONDS = 90.0
"""Seconds that a login may take: a small machine needs 20 s to load the library."""
GRACE_SECONDS = 30.0
"""Seconds that the library may take to restore a broken connection by itself."""
REPLACED_SECONDS = 600.0
"""Two hosts with one login throw each other out: at least slowly."""
OUTDATED_SECONDS = 6 * 3600.0
UNUSABLE_SECONDS = 600.0
LEAST_BAN_SECONDS = 600.0
LOGGED_OUT_SECONDS = 600.0

FINAL: frozenset[State] = frozenset({"logged_out", "banned", "replaced", "outdated", "unusable"})
"""States from which the library does not come back by itself."""


def pause_seconds(failures: int, *, chance: float) -> float:
    """Return the pause: 2 s, 4 s … 5 min, each shortened by up to half so that not all hosts come at once.

    `failures` counts from 1, `chance` is from [0, 1).
    """
    whole = min(FIRST_SECONDS * 2.0 ** min(failures - 1, 20), LONGEST_SECONDS)
    return float(whole * (1 - chance / 2))


def rest_seconds(end: StateReport, *, failures: int, now_ms: int, chance: float) -> float:
    """Return for how many seconds to leave WhatsApp alone after a login ended."""
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
    """The message to the owner about the end of a login. Grave ones do not pass by themselves."""

    text: str
    is_grave: bool = True


def advice(end: StateReport) -> ReconnectAdvice:
    """Return what happened and what to do about it, in one sentence."""
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
