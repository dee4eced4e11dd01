"""Read a point in time as an agent writes it, with the shared reader of times. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from agent_runner.wire import times
from agent_runner.wire.times import Duration, Instant, Language, Reason, Recurrence, Shift, TimeRefusal
from orchestrator.base.clock import local_iso
from orchestrator.domain.errors import BadTime

FURTHEST = timedelta(days=3660)
"""The furthest ahead that a time may lie: ten years."""
POLICY = times.TimePolicy(days_ahead=FURTHEST.days)
FORMS = "give an ISO time such as 2026-11-22T18:30, a duration such as 1h30m, or words such as 'tomorrow 9am'"
_UNLIMITED_DAYS = 400_000
"""Days, more than any duration that is meant: the caller judges the length, and names its own bounds."""
_CRON = re.compile(r"[\d*][\d*/,L#-]*( [\w*][\w*/,#-]*){4}", re.ASCII)
"""Five fields of cron, as opposed to words."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RefusedTime(BadTime):
    """The reader of times refused a text. `refusal` has the reason and the possible times."""

    def __init__(self, text: str, refusal: TimeRefusal, why: str) -> None:
        """`text` is what was read, and `why` the error's text for a person."""
        super().__init__(why)
        self.text = text
        self.refusal = refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSchedule:
    """A schedule in one text: the type and the value that `timing.plan` takes."""

    kind: str
    value: str


def schedule(text: str, *, now_ms: int, zone: ZoneInfo) -> WrittenSchedule:
    """Read a schedule as people write it: `every Monday at 9`, `every 2 hours`, `0 9 * * 1`, `tomorrow at 8`.

    Times of day are in `zone`, and durations count from `now_ms`.

    Raises:
        BadTime: it names no schedule, no time of day, or several times; see `RefusedTime.refusal`.
    """
    words = " ".join(text.split())
    if _CRON.fullmatch(words):
        return WrittenSchedule(kind="cron", value=words)
    repeated = recurrence(words, now_ms=now_ms, zone=zone)
    if repeated is not None:
        kind, value = repeated.schedule
        return WrittenSchedule(kind=kind, value=value)
    at_ms = point_ms(words, now_ms=now_ms, zone=zone)
    return WrittenSchedule(kind="once", value=local_iso(at_ms, zone))


def point_ms(text: str, *, now_ms: int, zone: ZoneInfo) -> int:
    """Read a point in time, and return it in epoch milliseconds.

    The text is an ISO time such as `2026-11-22T18:30`, with or without offset, a duration from `now_ms` such
    as `1h30m`, or words such as `tomorrow 9am`.

    A time without offset is in `zone`; if the clocks show it twice, the first to come is meant. A day alone
    means 09:00.

    Raises:
        BadTime: it is no time, does not exist on that day, is past, or is more than ten years ahead.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    result = times.read(text, now=now, zone=zone, policy=POLICY)
    match result:
        case TimeRefusal():
            raise _refused(text, result, now.astimezone(zone))
        case Instant(shift=Shift.SKIPPED):
            raise BadTime(f"{text} does not exist in {zone.key}: the clocks skip it that day.")
        case Recurrence():
            raise BadTime(f"'{text}' comes again and again; {FORMS}.")
        case _:
            due_ms = round(result.at.timestamp() * 1000)
    if due_ms <= now_ms:
        past = TimeRefusal(reason=Reason.PAST, at=result.at)
        raise _refused(text, past, now.astimezone(zone))
    if isinstance(result, Duration) and not (result.days or result.months):
        # A duration of hours or less is added to the milliseconds of now, which `result.at` may not have.
        return now_ms + _elapsed_ms(result)
    return due_ms


def duration(text: str) -> timedelta | None:
    """Return the length of a duration such as `1h30m`, `1h30` or `2d`.

    Return None if the text is no duration, or one of months, whose length is not fixed.
    """
    # The length of a duration does not depend on the present time, so `now` may be any time.
    result = times.read(text, now=_EPOCH, zone=UTC, policy=times.TimePolicy(days_ahead=_UNLIMITED_DAYS))
    # A text with several meanings is refused with all of them; one of these may be a duration.
    meanings = result.choices if isinstance(result, TimeRefusal) else (result,)
    span = next(
        (meaning for meaning in meanings if isinstance(meaning, Duration) and not meaning.months), None
    )
    return None if span is None else timedelta(days=span.days) + span.elapsed


def recurrence(text: str, *, now_ms: int, zone: ZoneInfo) -> Recurrence | None:
    """Read a repetition such as `every other Tuesday at 8:00`; return None if the text is none.

    Raises:
        BadTime: it repeats, but lacks a time of day, or can mean several times.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    result = times.read(text, now=now, zone=zone, policy=POLICY)
    if isinstance(result, TimeRefusal) and result.reason is Reason.NEEDS_CLOCK:
        raise RefusedTime(text, result, f"'{text}' needs a time of day: write '{text} at 9:00'.")
    if isinstance(result, TimeRefusal) and len(result.choices) > 1:
        raise _refused(text, result, now.astimezone(zone))
    return result if isinstance(result, Recurrence) else None


def _elapsed_ms(span: Duration) -> int:
    """Return the hours and smaller parts of a duration in milliseconds, without its days and months."""
    return round(span.elapsed / timedelta(milliseconds=1))


def _refused(text: str, refusal: TimeRefusal, now: datetime) -> RefusedTime:
    """Return the error for a text that is no usable time; `now` is the present time in the group's zone."""
    return RefusedTime(text, refusal, _why(text, refusal, now))


def _why(text: str, refusal: TimeRefusal, now: datetime) -> str:
    """Return, for a person, why a text is no time that can be used, and how to write one.

    `now` is the present time in the zone of the person's group.
    """
    at = refusal.at
    shown = text if len(text) <= times.MAX_CHARS else f"{text[: times.MAX_CHARS]}…"
    match refusal.reason:
        case _ if len(refusal.choices) > 1:  # whatever the reason, the text can mean several times
            meant = times.say_choices(refusal, Language.ENGLISH)
            example = times.say(refusal.choices[-1], Language.ENGLISH)  # the earliest may be past
            return f"'{shown}' could be {meant}: say which, such as '{example}'."
        case Reason.PAST:
            past = f"{at.isoformat(timespec='minutes')} is" if at else f"{shown} is"
            return f"{past} past; it is {now.isoformat(timespec='minutes')} now."
        case Reason.TOO_FAR:
            return f"{shown} is more than ten years ahead."
        case Reason.WHICH_HALF:
            return f"'{shown}' could be morning or evening: write 9am or 21:00."
        case _:
            return f"'{shown}' is no time I can use: {FORMS}."
