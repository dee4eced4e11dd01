"""What an agent is told of its dashboard at the start of a turn."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from orchestrator.dashboard.views import board, summary
from orchestrator.domain.values import Turn
from orchestrator.store import dashboard_views
from orchestrator.store.database import Tx


async def brief(tx: Tx, turn: Turn, *, zone: ZoneInfo, now_ms: int) -> str | None:
    """Render the dashboard of a turn's group, and note that this is what the turn decides upon.

    None where the group has no dashboard.
    """
    seen = await board.active(tx, turn.folder)
    if seen is None:
        return None
    await dashboard_views.note_view(tx, turn.id, turn.folder, seen.dashboard.revision)
    return summary.render(seen, now_ms=now_ms, zone=zone)
