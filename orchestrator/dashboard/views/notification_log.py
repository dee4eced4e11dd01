"""Serialize the history of a notification: as data, and as lines for people and models. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso
from orchestrator.dashboard.words import when
from orchestrator.domain.dashboard import Notification
from orchestrator.store.dashboard_notifications import HistoryEntry


def whole(one: Notification, recorded: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    """Return the recorded entries, after one for its making where that was not recorded.

    So it is of what was imported, or made before changes were recorded.
    """
    if recorded and recorded[0].what == "created":
        return list(recorded)
    made = HistoryEntry(
        folder=one.folder,
        notification_id=one.id,
        at_ms=one.created_ms,
        what="created",
        by=one.created_by.value,
        detail={},
    )
    return [made, *recorded]


def event_word(entry: HistoryEntry) -> str:
    """Return the last part of the kind of an entry's event: `created`, `moved`, `not_sent`, …"""
    return entry.what.replace(" ", "_")


def event_fields(entry: HistoryEntry) -> dict[str, Any]:
    """Return the fields of an entry's event."""
    return {
        "group": entry.folder,
        "turn": entry.turn_id,
        "detail": entry.notification_id,
        "reason": entry.detail.get("reason") or entry.detail.get("error"),
        "data": {"by": entry.by},
    }


def data(entry: HistoryEntry, zone: ZoneInfo) -> dict[str, Any]:
    """Return an entry with its times in the group's zone."""
    found: dict[str, Any] = {"at": local_iso(entry.at_ms, zone), "what": entry.what, "by": entry.by}
    if entry.turn_id is not None:
        found["turn"] = entry.turn_id
    for name, value in entry.detail.items():
        is_time = name.endswith("_ms") and name != "late_ms" and value is not None
        found[name.removesuffix("_ms") if is_time else name] = local_iso(value, zone) if is_time else value
    return found


def line(entry: HistoryEntry, zone: ZoneInfo) -> str:
    """Return an entry as a line: `2026-02-09 08:40 moved by user: from … to 2026-02-10 10:00`."""
    turn = f" (turn {entry.turn_id})" if entry.turn_id is not None else ""
    about = "; ".join(_about(dict(entry.detail), zone))
    return f"{when.format_time(entry.at_ms, zone)} {entry.what} by {entry.by}{turn}" + (
        f": {about}" if about else ""
    )


def _about(detail: dict[str, Any], zone: ZoneInfo) -> list[str]:
    found = []
    if "from_ms" in detail:
        found.append(
            f"from {when.format_time(detail['from_ms'], zone)} to {when.format_time(detail['to_ms'], zone)}"
        )
    if "from" in detail:
        found.append(f"from “{_short(detail['from'])}” to “{_short(detail['to'])}”")
    if "due_ms" in detail:
        found.append(f"for {when.format_time(detail['due_ms'], zone)}")
    if detail.get("late_ms", 0) >= 60_000:
        found.append(f"{detail['late_ms'] // 60_000} min late")
    if detail.get("again_ms"):
        found.append(f"again at {when.format_time(detail['again_ms'], zone)}")
    if "message" in detail:
        found.append(f"“{_short(detail['message'])}”")
    found += [_short(detail[name]) for name in ("reason", "error") if detail.get(name)]
    return found


def _short(text: str) -> str:
    said = " ".join(str(text).split())
    return said if len(said) <= 200 else f"{said[:199]}…"
