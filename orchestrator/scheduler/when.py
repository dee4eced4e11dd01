"""Read a point in time as an agent writes it, by the one reader of times. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from agent_runner.wire import times
from agent_runner.wire.times import Duration, Instant, Language, Reason, Recurrence, Shift, TimeRefusal
from orchestrator.domain.errors import BadTime

FURTHEST = timedelta(days=3660)
POLICY = times.TimePolicy(days_ahead=FURTHEST.days)
FORMS = "give an ISO time such as 2026-11-22T18:30, a duration such as 1h30m, or words such as 'tomorrow 9am'"
_ANY_DAYS = 400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def point_ms(text: str, *, now_ms: int, zone: ZoneInfo) -> int:
    """Return `2026-11-22T18:30`, with or without offset, `1h30m` or `tomorrow 9am` as epoch ms.

    A time without offset is read in `zone`; of the two it may mean when clocks go back, the first to come.
    A day alone is 09:00.

    Raises:
        BadTime: it is no time, does not exist on that day, is past, or lies more than ten years ahead.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    read = times.read(text, now=now, zone=zone, policy=POLICY)
    match read:
        case TimeRefusal():
            raise BadTime(_why(text, read, now.astimezone(zone)))
        case Instant(shift=Shift.SKIPPED):
            raise BadTime(f"{text} does not exist in {zone.key}: the clocks skip it that day.")
        case Recurrence():
            raise BadTime(f"'{text}' comes again and again; {FORMS}.")
        case _:
            due_ms = round(read.at.timestamp() * 1000)
    if due_ms <= now_ms:
        past = TimeRefusal(reason=Reason.PAST, at=read.at)
        raise BadTime(_why(text, past, now.astimezone(zone)))
    return now_ms + _ms(read) if isinstance(read, Duration) and not (read.days or read.months) else due_ms


def duration(text: str) -> timedelta | None:
    """Return the span that `1h30m`, `1h30` or `2d` names; None where its length is not fixed."""
    read = times.read(text, now=_EPOCH, zone=UTC, policy=times.TimePolicy(days_ahead=_ANY_DAYS))
    meanings = read.choices if isinstance(read, TimeRefusal) else (read,)
    span = next((one for one in meanings if isinstance(one, Duration) and not one.months), None)
    return None if span is None else timedelta(days=span.days) + span.elapsed


def recurrence(text: str, *, now_ms: int, zone: ZoneInfo) -> Recurrence | None:
    """Return what `every other Tuesday at 8:00` names; None of a text that names nothing that repeats.

    Raises:
        BadTime: it repeats, but lacks a time of day, or can mean several times.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    read = times.read(text, now=now, zone=zone, policy=POLICY)
    if isinstance(read, TimeRefusal) and read.reason is Reason.NEEDS_CLOCK:
        raise BadTime(f"'{text}' needs a time of day: write '{text} at 9:00'.")
    if isinstance(read, TimeRefusal) and len(read.choices) > 1:
        raise BadTime(_why(text, read, now.astimezone(zone)))
    return read if isinstance(read, Recurrence) else None


def _ms(read: Duration) -> int:
    return round(read.elapsed / timedelta(milliseconds=1))


def _why(text: str, refusal: TimeRefusal, now: datetime) -> str:
    at = refusal.at
    shown = text if len(text) <= times.MAX_CHARS else f"{text[: times.MAX_CHARS]}…"
    match refusal.reason:
        case _ if len(refusal.choices) > 1:
            return f"'{shown}' could be {times.say_choices(refusal, Language.ENGLISH)}: say which."
        case Reason.PAST:
            past = f"{at.isoformat(timespec='minutes')} is" if at else f"{shown} is"
            return f"{past} past; it is {now.isoformat(timespec='minutes')} now."
        case Reason.TOO_FAR:
            return f"{shown} is more than ten years ahead."
        case Reason.WHICH_HALF:
            return f"'{shown}' could be morning or evening: write 9am or 21:00."
        case _:
            return f"'{shown}' is no time I can use: {FORMS}."
