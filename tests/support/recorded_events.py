"""Record the events of a run when they are emitted."""

from __future__ import annotations

from collections.abc import Callable

from agent_runner.ans.event import NoticeEvent
from agent_runner.ans.notices import RunNotices


def record_events(notices: RunNotices, record: Callable[[NoticeEvent], None]) -> None:
    """Call `record` with each event before the queue of `notices` takes it."""
    emit = notices.events.emit

    def emit_recorded(event: NoticeEvent) -> None:
        record(event)
        emit(event)

    notices.events.emit = emit_recorded  # type: ignore[method-assign]
