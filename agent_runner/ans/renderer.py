"""Write the text for a model at one point: the notices that fit, in one wrapper, and how many remain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_runner.ans.notification import NoticeBatch

OPEN = "<system_notification>"
CLOSE = "</system_notification>"
MAX_CHARS = 2_000
"""Most characters of the run's own notices together. The host's may fill all that a point accepts: they wait
for turns that may be a day apart, and have an end.
"""
MAX_NOTICES = 10
MAX_COUNT_LINE = 200
_FRAME = len(OPEN) + len(CLOSE) + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedNotice:
    """One notification and its delivered text; None if it was only counted."""

    notification: NoticeBatch
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedNotices:
    """The text for a model, and the candidates that it contains. The others stay."""

    text: str = ""
    delivered: tuple[RenderedNotice, ...] = ()


Write = Callable[[NoticeBatch], str]


def compose(candidates: Sequence[NoticeBatch], write: Write, *, limit: int) -> RenderedNotices:
    """Return the first of `candidates` that fit in `limit`: `MAX_NOTICES`, the run's own in `MAX_CHARS`.

    A first one that is longer than `MAX_CHARS` goes alone, if `limit` allows it, and a long table in parts.
    Of the rest, notices of low priority are summed up in a line that counts them, and the others wait.
    """
    delivered = _fitting(candidates, write, limit - _FRAME - MAX_COUNT_LINE)
    if not delivered:
        return RenderedNotices()
    rest = list(candidates[len(delivered) :])
    is_whole = delivered[-1].notification is candidates[len(delivered) - 1]
    summed = [each for each in rest if each.may_be_summed_up]
    waiting = len(rest) - len(summed) + (not is_whole)
    lines = [each.text or "" for each in delivered] + _count_line(summed, waiting)
    counted = (RenderedNotice(notification=each, text=None) for each in summed)
    return RenderedNotices(text="\n".join((OPEN, *lines, CLOSE)), delivered=(*delivered, *counted))


def _fitting(candidates: Sequence[NoticeBatch], write: Write, limit: int) -> list[RenderedNotice]:
    delivered: list[RenderedNotice] = []
    room, own_room = limit, min(limit, MAX_CHARS)
    for candidate in candidates[:MAX_NOTICES]:
        is_stored = candidate.notice_id is not None
        space = room if is_stored else min(room, own_room)
        one = candidate if delivered else _shortened(candidate, write, space)
        text = write(one)
        if len(text) > (space if delivered else limit):
            break
        delivered.append(RenderedNotice(notification=one, text=text))
        if one is not candidate:
            break
        room -= len(text) + 1
        own_room -= 0 if is_stored else len(text) + 1
    return delivered


def _shortened(notification: NoticeBatch, write: Write, room: int) -> NoticeBatch:
    """Return the notification with as many of its entries as fit, and one at least."""
    while len(notification.entries) > 1 and len(write(notification)) > room:
        notification = notification.first_half()
    return notification


def _count_line(summed: Sequence[NoticeBatch], waiting: int) -> list[str]:
    types = Counter[str]()
    for each in summed:
        for entry in each.entries:
            types[entry.event.type] += entry.count - entry.delivered_count
    parts = [f"{count} {event_type}" for event_type, count in types.most_common(3)]
    if len(types) > len(parts):
        parts.append(f"{types.total() - sum(count for _, count in types.most_common(3))} others")
    if waiting:
        parts.append(f"{waiting} to be told next")
    return [f"more: {', '.join(parts)}"[:MAX_COUNT_LINE]] if parts else []
