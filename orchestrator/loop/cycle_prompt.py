"""Write the prompt of a free cycle, in which an agent wakes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from zoneinfo import ZoneInfo

from agent_runner.wire.wakes import GUIDANCE
from orchestrator.base.clock import format_span, local_iso, local_minute
from orchestrator.domain import schedule_tag
from orchestrator.domain.values import Folder, Group
from orchestrator.store.database import Tx
from orchestrator.store.loop import cycles, wake_requests
from orchestrator.store.loop.wake_requests import WakeRequest

MAX_WAKES = 20
"""Most reasons for a cycle that its prompt lists."""
MAX_SUMMARY_CHARS = 20_000
"""Most characters of the dashboard in the prompt."""
NOTICE = (
    "[This is a free cycle: you have woken by yourself, nobody wrote just now and nobody can be asked. "
    "Look whether something is to be done and do it. Your final answer goes to the chat: say only what "
    "people there want to know now. When there is nothing, answer SILENT.]"
)


async def prompt(
    tx: Tx,
    group: Group,
    wakes: Sequence[WakeRequest],
    *,
    last_end_ms: int | None,
    summary: str | None,
    zone: ZoneInfo,
    now_ms: int,
) -> str:
    """Return the prompt of a free cycle, a turn for which an agent has woken by itself.

    It has the time, why the agent woke, the activity since its last cycle, the dashboard, and guidance.

    Args:
        tx: the transaction.
        group: the agent's group.
        wakes: the requests for which it woke.
        last_end_ms: when its last cycle ended, in epoch milliseconds; None for the first cycle.
        summary: the part of the group's dashboard to show; None for a group without one.
        zone: the group's time zone.
        now_ms: the present time, in epoch milliseconds.
    """
    parts = [
        f'<context timezone="{zone.key}" now="{local_iso(now_ms, zone)}"/>',
        NOTICE,
        _wakes_line(wakes),
        await _since(tx, group.folder, last_end_ms, zone=zone, now_ms=now_ms),
        _summary_block(summary),
        GUIDANCE,
    ]
    return "\n\n".join(part for part in parts if part)


def describe_wake(wake: WakeRequest) -> str:
    """Return the reason of a wake request, for which an agent woke, on one short line."""
    line = f"{wake.kind}: {wake.reason}" if wake.reason else wake.kind
    return line[: wake_requests.MAX_REASON_CHARS]


def _wakes_line(wakes: Sequence[WakeRequest]) -> str:
    """Return the line of the prompt with the reasons for which the agent woke, at most `MAX_WAKES`."""
    lines = [_safe(describe_wake(wake)) for wake in wakes[:MAX_WAKES]]
    lines += [f"and {len(wakes) - len(lines)} more"] if len(wakes) > len(lines) else []
    return "Triggered by: " + ("; ".join(lines) or "nothing that is known")


async def _since(tx: Tx, folder: Folder, last_end_ms: int | None, *, zone: ZoneInfo, now_ms: int) -> str:
    """Return a sentence about the messages and turns since the agent's last cycle ended.

    `last_end_ms` is when that was, in epoch milliseconds; None before the first cycle. `zone` is the time
    zone in which it is written.
    """
    if last_end_ms is None:
        return "This is your first cycle."
    counts = await cycles.counts_since(tx, folder, since_ms=last_end_ms)
    when = f"{local_minute(last_end_ms, zone)}, {format_span(now_ms - last_end_ms)} ago"
    return (
        f"Since your last cycle ended ({when}): "
        f"messages that came in: {counts['messages']}, other turns that ended: {counts['turns']}."
    )


def _summary_block(summary: str | None) -> str:
    """Return the dashboard as an element of the prompt; empty if `summary` is empty or None."""
    if not summary:
        return ""
    # A dashboard has texts of people: neither markup nor a schedule tag in them may count.
    shown = escape(summary[:MAX_SUMMARY_CHARS], quote=False)
    return f"<dashboard>\n{schedule_tag.neutralise(shown)}\n</dashboard>"


def _safe(text: str) -> str:
    """Return a reason escaped for the prompt, since it may contain a file name that anybody chose.

    It has no markup, and no tag by which an agent schedules its next wake.
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return schedule_tag.neutralise(plain).replace("<", "&lt;")
