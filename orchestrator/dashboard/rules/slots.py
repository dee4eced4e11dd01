"""Choose the time of day at which something is sent: slots and quiet hours. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from orchestrator.domain.dashboard import Deadline

DAY = timedelta(days=1)
JUST_NOW_MS = 60_000
"""Milliseconds after a time within which it still counts as now: a pass at that time runs a little later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """The notification hours of one group, as its clocks show them."""

    zone: ZoneInfo
    slots: tuple[time, ...] = (time(9), time(18))
    """The times of day at which notifications without a time of their own are sent, earliest first."""
    quiet_start: int = 23
    quiet_end: int = 8
    """The hours between which only urgent notifications are sent; the same hour twice means no quiet time."""

    def day_of(self, at_ms: int) -> date:
        """Return the day of a moment (epoch ms) in the group's zone."""
        return self._local(at_ms).date()

    def start_of(self, day: date) -> int:
        """Return the first moment of a day in the group's zone, in epoch ms."""
        return self.moment(day, time(0))

    def moment(self, day: date, time_of_day: time) -> int:
        """Return a time of day on a day in the group's zone, in epoch ms.

        If the clocks show this time twice on that day, the first counts; if they skip it, it is moved on by
        the skipped span.
        """
        return round(datetime.combine(day, time_of_day, self.zone).timestamp() * 1000)

    def next_slot(self, now_ms: int) -> int:
        """Return the time of the next slot, in epoch ms; it is `now_ms` if that is a slot.

        Slots are the times of day at which notifications are sent.
        """
        return next(slot_ms for slot_ms in self._slots_from(now_ms) if slot_ms >= now_ms)

    def is_quiet(self, at_ms: int) -> bool:
        """Return whether a moment (epoch ms) is in the quiet hours, which may go over midnight."""
        hour, start, end = self._local(at_ms).hour, self.quiet_start, self.quiet_end
        if start <= end:  # not over midnight; if both are the same, no hour is quiet
            return start <= hour < end
        return hour >= start or hour < end

    def after_quiet(self, at_ms: int) -> int:
        """Return the moment itself or, if it is in the quiet hours, their end; both in epoch ms."""
        if not self.is_quiet(at_ms):
            return at_ms
        day = self.day_of(at_ms)
        # The quiet hours end today or tomorrow; with the third day, `next` never runs out.
        ends = (
            self.moment(end_day, time(self.quiet_end % 24)) for end_day in (day, day + DAY, day + 2 * DAY)
        )
        return next(end for end in ends if end > at_ms)

    def _slots_from(self, now_ms: int) -> Iterator[int]:
        """Yield the times for notifications (epoch ms) of today and of all later days, without end.

        The first ones may be past.
        """
        day = self.day_of(now_ms)
        while True:
            yield from (self.moment(day, slot) for slot in self.slots)
            day += DAY

    def _local(self, at_ms: int) -> datetime:
        """Return a moment (epoch ms) as a time in the group's zone."""
        return datetime.fromtimestamp(at_ms / 1000, self.zone)


def send_time_ms(ideal_ms: int, hours: Hours, *, now_ms: int, deadline_ms: int | None = None) -> int:
    """Return when to send a notification whose best time is `ideal_ms`, in epoch ms.

    If the best time is past, it is sent at the next slot, a time of day for notifications; or now, if the
    next slot is not before `deadline_ms`.
    """
    if ideal_ms >= now_ms - JUST_NOW_MS:
        return ideal_ms
    slot = hours.next_slot(now_ms)
    return slot if deadline_ms is None or slot < deadline_ms else now_ms


def end_ms(deadline: Deadline, hours: Hours) -> int:
    """Return when a deadline has passed, in epoch ms: at its time, or at the end of a whole day."""
    if deadline.date is None:
        return deadline.at_ms
    day = date.fromisoformat(deadline.date)
    # The calendar's last day, which an older import may have brought, has no day after it.
    return hours.start_of(day + DAY) if day < date.max else hours.moment(day, time.max)
