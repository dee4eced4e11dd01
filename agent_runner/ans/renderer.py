"""Write the text for a model at one point: the notices that fit, in one wrapper, and a count of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_runner.ans.notification import NoticeBatch

OPEN = "<system_notification>"
CLOSE = "</system_notification>"
"""The end of the wrapper around all notices of one text, which `OPEN` begins."""
MAX_CHARS = 2_000
"""Most characters of the notices that the run itself has made, together.

The host's may use all that a point accepts: their number is bounded, and their next turn may be a day away.
"""
MAX_NOTICES = 10
"""Most notices in one text."""
MAX_COUNT_LINE = 200
"""Most characters of the line that counts the other notices."""
_FRAME = len(OPEN) + len(CLOSE) + 2
"""Characters of the wrapper with its line breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedNotice:
    """One batch of notices and its text; None if it is only counted in the last line."""

    batch: NoticeBatch
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedNotices:
    """The text for a model, and the batches that count as delivered: written in it, or only counted in it."""

    text: str = ""
    delivered: tuple[RenderedNotice, ...] = ()


Write = Callable[[NoticeBatch], str]


def compose(candidates: Sequence[NoticeBatch], write: Write, *, limit: int) -> RenderedNotices:
    """Return a text with the first of `candidates` that fit in `limit` characters, at most `MAX_NOTICES`.

    `write` returns the text of one candidate. Notices that the run itself has made, and not the host, get
    less space, and of a first candidate that is too long only the first entries are written: see `_fitting`.
    Of the candidates that do not fit, those that `may_be_summed_up` are counted by
    type in the last line and count as delivered; the others wait. The result is empty if not even the first
    fits.
    """
    delivered = _fitting(candidates, write, limit - _FRAME - MAX_COUNT_LINE)
    if not delivered:
        return RenderedNotices()
    undelivered = list(candidates[len(delivered) :])
    is_whole = delivered[-1].batch is candidates[len(delivered) - 1]
    summed_up = [batch for batch in undelivered if batch.may_be_summed_up]
    # If the last batch was cut, the rest of it waits, too.
    waiting = len(undelivered) - len(summed_up) + (not is_whole)
    lines = [notice.text or "" for notice in delivered] + _count_line(summed_up, waiting)
    counted = (RenderedNotice(batch=batch, text=None) for batch in summed_up)
    return RenderedNotices(text="\n".join((OPEN, *lines, CLOSE)), delivered=(*delivered, *counted))


def _fitting(candidates: Sequence[NoticeBatch], write: Write, limit: int) -> list[RenderedNotice]:
    """Return the first candidates that fit in `limit` characters, at most `MAX_NOTICES`, with their texts.

    `write` returns the text of a candidate. Candidates that the run itself has made have no `notice_id`,
    unlike those of the host; they may take only `MAX_CHARS` of `limit` together. The first candidate is
    shortened to the space that it may take; if it has a single entry left and is still longer, it may take
    all of `limit`. After a shortened candidate, no other is returned.
    """
    delivered: list[RenderedNotice] = []
    room_left, own_room_left = limit, min(limit, MAX_CHARS)
    for candidate in candidates[:MAX_NOTICES]:
        is_stored = candidate.notice_id is not None
        space = room_left if is_stored else min(room_left, own_room_left)
        batch = candidate if delivered else _shortened(candidate, write, space)
        text = write(batch)
        # The first may be longer than its space, by its only entry.
        if len(text) > (space if delivered else limit):
            break
        delivered.append(RenderedNotice(batch=batch, text=text))
        if batch is not candidate:
            break
        room_left -= len(text) + 1
        own_room_left -= 0 if is_stored else len(text) + 1
    return delivered


def _shortened(batch: NoticeBatch, write: Write, room: int) -> NoticeBatch:
    """Return a batch whose number of entries was halved until its text fits in `room` characters.

    The first entries stay, at least one, even if that one does not fit.
    """
    while len(batch.entries) > 1 and len(write(batch)) > room:
        batch = batch.first_half()
    return batch


def _count_line(summed_up: Sequence[NoticeBatch], waiting: int) -> list[str]:
    """Return a line that counts the notices that are not shown, as a list of one; empty if there are none.

    Those in `summed_up` are counted by type: the three most frequent types, then all others together.
    `waiting` is the number of those that are delivered later.
    """
    types = Counter[str]()
    for batch in summed_up:
        for entry in batch.entries:
            types[entry.event.type] += entry.count - entry.delivered_count
    parts = [f"{count} {event_type}" for event_type, count in types.most_common(3)]
    if len(types) > len(parts):
        parts.append(f"{types.total() - sum(count for _, count in types.most_common(3))} others")
    if waiting:
        parts.append(f"{waiting} to be told next")
    return [f"more: {', '.join(parts)}"[:MAX_COUNT_LINE]] if parts else []
