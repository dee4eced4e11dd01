"""Notify the owner of a part of the host that keeps failing, once a day and with the fix."""

from __future__ import annotations

from orchestrator.base.supervision import LoopFailure
from orchestrator.groups import owner
from orchestrator.groups.host_context import HostContext

ESSENTIAL_LOOPS = frozenset({"delivery", "dispatcher", "availability", "reaper"})
"""Loops that the queue and the outbox need: only these may end the host."""
WEB_LOOP = "web"
CHANNEL_PREFIX = "channel:"
"""Prefix of the name of a channel's loop; the rest is the name of the channel."""
DAY_MS = 24 * 3_600_000


def is_endless(loop: str) -> bool:
    """Return whether the loop of the host with this name should never return: if it does, it has failed."""
    return loop == WEB_LOOP or loop.startswith(CHANNEL_PREFIX)


async def report_failed_part(host: HostContext, failure: LoopFailure) -> None:
    """Publish that a part of the host fails, and notify the owner in the main group, once a day."""
    host.bus.publish("host.part_failed", detail=failure.name, reason=failure.reason)
    now_ms = host.clock.now_ms()
    async with host.database.transaction() as tx:
        about = f"loop:{failure.name}:{now_ms // DAY_MS}"
        await owner.notify(tx, failure_text(failure), about=about, now_ms=now_ms)
    host.wakeups.outbox.set()


def failure_text(failure: LoopFailure) -> str:
    """Return the text to the owner that a part of the host keeps failing, with the fix. Pure."""
    channel = failure.name.removeprefix(CHANNEL_PREFIX)
    if channel != failure.name:
        part = f"The messenger '{channel}'"
        fix = f"see 'andy channels status {channel}'; upgrade it, or 'andy channels remove {channel}'"
    else:
        part = f"A part of me, '{failure.name}',"
        fix = "'andy logs' has the details for a bug report; an upgrade may have the fix"
    return (
        f"⚠️ {part} has stopped working ({failure.reason}). Everything else goes on, and I keep trying it."
        f" Fix: {fix}."
    )
