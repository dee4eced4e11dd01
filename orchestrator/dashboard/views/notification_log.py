"""Serialize the history of a notification: as data, and as lines for people and models. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_iso
from orchestrator.dashboard.words import when
from orchestrator.domain.dashboard import Notification
from orchestrator.store.board.notifications import HistoryEntry


def with_creation(row: Notification, recorded: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    """Return the recorded history of a notification, with an entry for its creation first.

    Imported notifications, and those older than such histories, have no such entry in the database: one is
    made from the row.
    """
    if recorded and recorded[0].what == "created":
        return list(recorded)
    creation = HistoryEntry(
        folder=row.folder,
        notification_id=row.id,
        at_ms=row.created_ms,
        what="created",
        by=row.created_by.value,
        detail={},
    )
    return [creation, *recorded]


def event_word(entry: HistoryEntry) -> str:
    """Return the last part of the name of the event about a history's entry: `created`, `not_sent`, …"""
    return entry.what.replace(" ", "_")


def event_fields(entry: HistoryEntry) -> dict[str, Any]:
    """Return the fields of the event about an entry of a notification's history, for the event bus."""
    return {
        "group": entry.folder,
        "turn": entry.turn_id,
        "detail": entry.notification_id,
        "reason": entry.detail.get("reason") or entry.detail.get("error"),
        "data": {"by": entry.by},
    }


def data(entry: HistoryEntry, zone: ZoneInfo) -> dict[str, Any]:
    """Return an entry of a notification's history as data: `at`, `what`, `by`, `turn` and its details.

    `turn` is missing if there is none. Times are ISO, in `zone`.
    """
    fields: dict[str, Any] = {"at": local_iso(entry.at_ms, zone), "what": entry.what, "by": entry.by}
    if entry.turn_id is not None:
        fields["turn"] = entry.turn_id
    for name, value in entry.detail.items():
        # All details in ms are times but `late_ms`, a duration.
        is_time = name.endswith("_ms") and name != "late_ms" and value is not None
        if is_time:
            fields[name.removesuffix("_ms")] = local_iso(value, zone)
        else:
            fields[name] = value
    return fields


def line(entry: HistoryEntry, zone: ZoneInfo) -> str:
    """Return an entry of a notification's history as a line for people and models.

    For example `2026-02-09 08:40 moved by user: from … to 2026-02-10 10:00`, with times in `zone`.
    """
    turn = f" (turn {entry.turn_id})" if entry.turn_id is not None else ""
    about = "; ".join(_detail_texts(dict(entry.detail), zone))
    return f"{when.format_time(entry.at_ms, zone)} {entry.what} by {entry.by}{turn}" + (
        f": {about}" if about else ""
    )


def _detail_texts(detail: dict[str, Any], zone: ZoneInfo) -> list[str]:
    """Return the details of a history's entry as short texts for people, with times in `zone`."""
    parts = []
    if "from_ms" in detail:
        parts.append(
            f"from {when.format_time(detail['from_ms'], zone)} to {when.format_time(detail['to_ms'], zone)}"
        )
    if "from" in detail:
        parts.append(f"from “{_short(detail['from'])}” to “{_short(detail['to'])}”")
    if "due_ms" in detail:
        parts.append(f"for {when.format_time(detail['due_ms'], zone)}")
    if detail.get("late_ms", 0) >= 60_000:  # less than a minute is not worth a word
        parts.append(f"{detail['late_ms'] // 60_000} min late")
    if detail.get("again_ms"):
        parts.append(f"again at {when.format_time(detail['again_ms'], zone)}")
    if "message" in detail:
        parts.append(f"“{_short(detail['message'])}”")
    parts += [_short(detail[name]) for name in ("reason", "error") if detail.get(name)]
    return parts


def _short(text: str) -> str:
    """Return a text on one line, at most 200 characters long."""
    shown = " ".join(str(text).split())
    return shown if len(shown) <= 200 else f"{shown[:199]}…"
