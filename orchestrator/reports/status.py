"""What runs, waits and goes wrong: for `GET /status` and `andy status`. Stable keys, no texts of chats.

What models were told that is urgent is named: whoever runs Andy should see it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.base.tables import short
from orchestrator.domain.values import LiveRun, Run, RunId, RunState, TaskStatus, Turn, TurnState
from orchestrator.groups import settings
from orchestrator.proxies.model.credentials import CredentialStatus
from orchestrator.reports import notices
from orchestrator.store import groups, notice_claims, outbox, reminders, runs, tasks, turns
from orchestrator.store.database import Tx

DAY_MS = 24 * 3_600_000
NEXT = 3
NOTICES = 10
WAITING = 50
NO_ENGINE = "⚠️ Docker does not answer, so no turn is begun: start it ('andy doctor' says more)"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What the store does not know."""

    version: str
    home: str
    runtime: str
    is_isolated: bool
    image: str | None
    agent: str
    credential: CredentialStatus
    slots: int
    live: Sequence[LiveRun]
    is_stopping: bool
    started_ms: int
    now_ms: int
    steady_ms: int
    disk_free_bytes: int
    channels: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """How each is that has a connection."""
    has_engine: bool = True
    """Whether the runtime can start containers at this moment."""


async def gather(tx: Tx, host: HostFacts) -> dict[str, Any]:
    """Look at all of it at one moment."""
    recorded = {run.id: run for run in await runs.live(tx)}
    unsettled = await turns.unsettled(tx)
    unsent = await outbox.unsent(tx, limit=1000)
    registered = await groups.every(tx)
    return {
        "version": host.version,
        "home": host.home,
        "started_ms": host.started_ms,
        "uptime_seconds": _seconds(host.now_ms - host.started_ms),
        "stopping": host.is_stopping,
        "runtime": host.runtime,
        "isolated": host.is_isolated,
        "engine": host.has_engine,
        "image": host.image,
        "agent": host.agent,
        "credential": host.credential.to_json_dict(),
        "disk_free_bytes": host.disk_free_bytes,
        "channels": dict(host.channels),
        "groups": [group.folder for group in registered],
        "open": [group.folder for group in registered if settings.of(group).egress == "open"],
        "containers": [_container(run, recorded, unsettled, host) for run in host.live],
        "conversations": [_conversation(run) for run in await runs.last_restores(tx)],
        "slots": host.slots,
        "turns": await turns.counts(tx),
        "waiting": _waiting(unsettled, host),
        "reminders": await _reminders(tx),
        "tasks": await _tasks(tx),
        "outbox": {
            "waiting": sum(one.state != "dead" for one in unsent),
            "dead": sum(one.state == "dead" for one in unsent),
        },
        "errors": await _errors(tx, since_ms=host.now_ms - DAY_MS),
        "notices": await _notices(tx, since_ms=host.now_ms - DAY_MS),
    }


def _conversation(run: Run) -> dict[str, Any]:
    """How a group's container went on with its conversation when it last began."""
    return {
        "group": run.folder,
        "run": run.id,
        "started_ms": run.started_ms,
        "mode": run.restore_mode,
        "reason": run.restore_reason,
    }


def _container(
    live: LiveRun, recorded: dict[RunId, Run], unsettled: Sequence[Turn], host: HostFacts
) -> dict[str, Any]:
    run = recorded.get(live.id)
    age_ms = host.now_ms - run.started_ms if run else host.steady_ms - live.started_ms
    turn = next((one for one in unsettled if _is_turn_of(live, one)), None)
    return {
        "run": live.id,
        "group": live.folder,
        "state": live.state.value,
        "state_seconds": _seconds(host.steady_ms - live.idle_since_ms),
        "age_seconds": _seconds(age_ms),
        "turn": _turn(turn, host.now_ms) if turn else None,
    }


def _is_turn_of(live: LiveRun, turn: Turn) -> bool:
    return turn.id == live.turn_id or (turn.run_id == live.id and turn.state is TurnState.RUNNING)


def _turn(turn: Turn, now_ms: int) -> dict[str, Any]:
    started_ms = turn.started_ms if turn.state is TurnState.RUNNING else None
    return {
        "id": turn.id,
        "kind": turn.kind.value,
        "attempt": turn.attempt,
        "seconds": _seconds(now_ms - (started_ms or now_ms)),
    }


def _waiting(unsettled: Sequence[Turn], host: HostFacts) -> list[dict[str, Any]]:
    begun = {run.turn_id for run in host.live}
    queued = [turn for turn in unsettled if turn.state is TurnState.QUEUED and turn.id not in begun]
    return [
        {
            "turn": turn.id,
            "group": turn.folder,
            "kind": turn.kind.value,
            "place": place,
            "attempt": turn.attempt,
            "waited_seconds": _seconds(host.now_ms - turn.queued_ms),
            "next_try_seconds": _seconds(turn.not_before_ms - host.now_ms),
            "reason": turn.reason,
        }
        for place, turn in enumerate(queued[:WAITING], start=1)
    ]


async def _reminders(tx: Tx) -> dict[str, Any]:
    pending = await reminders.pending(tx)
    coming = [{"id": one.id, "group": one.folder, "due_ms": one.due_ms} for one in pending[:NEXT]]
    return {"pending": len(pending), "next": coming}


async def _tasks(tx: Tx) -> dict[str, Any]:
    active = [task for task in await tasks.every(tx) if task.status is TaskStatus.ACTIVE and task.next_ms]
    coming = [{"id": one.id, "group": one.folder, "due_ms": one.next_ms} for one in active[:NEXT]]
    return {"active": len(active), "next": coming}


async def _errors(tx: Tx, *, since_ms: int) -> list[dict[str, Any]]:
    """What went wrong, by its kind, the latest first: ends of containers, and turns that were given up."""
    found = [*await runs.bad_ends(tx, since_ms=since_ms), *await turns.failures(tx, since_ms=since_ms)]
    return sorted(found, key=lambda one: -one["last_ms"])


async def _notices(tx: Tx, *, since_ms: int) -> list[dict[str, Any]]:
    """The newest of high or critical priority that models were told."""
    found = await notice_claims.recently_told(tx, since_ms=since_ms, limit=NOTICES)
    return [notices.told_row(one) for one in found]


def _seconds(milliseconds: int) -> float:
    return round(max(0, milliseconds) / 1000, 1)


# For people


def lines(found: dict[str, Any], *, zone: ZoneInfo | None = None) -> list[str]:
    """`andy status`; without a zone, by this machine's clock."""
    isolation = "isolated" if found["isolated"] else "NOT isolated"
    image = f", image {found['image']}" if found["image"] else ""
    stopping = " and is stopping" if found["stopping"] else ""
    held = sum(one["state"] != RunState.LEFT for one in found["containers"])
    return [
        f"Andy {found['version']} runs on {found['home']} for {_span(found['uptime_seconds'])}{stopping}",
        f"agent       {found['agent']} in {found['runtime']} ({isolation}){image}",
        *([] if found["engine"] else [f"engine      {NO_ENGINE}"]),
        f"credential  {_credential_told(found['credential'], zone)}",
        *(f"model       ⚠️ {_refusal_told(one, zone)}" for one in found["credential"]["refusals"]),
        f"disk        {found['disk_free_bytes'] / 2**30:,.1f} GiB free",
        *(f"{name:<11} {_channel_told(one)}" for name, one in found["channels"].items()),
        f"groups      {', '.join(found['groups'])}",
        *([f"OPEN        ⚠️ all of the internet: {', '.join(found['open'])}"] if found["open"] else []),
        f"containers  {held} of {found['slots']}",
        *(f"  {_container_told(one)}" for one in found["containers"]),
        *(["last starts"] if found["conversations"] else []),
        *(f"  {_conversation_told(one, zone)}" for one in found["conversations"]),
        f"waiting     {len(found['waiting']) or 'nothing'}",
        *(f"  {_waiting_told(one)}" for one in found["waiting"]),
        f"reminders   {_coming_told(found['reminders']['pending'], found['reminders']['next'], zone)}",
        f"tasks       {_coming_told(found['tasks']['active'], found['tasks']['next'], zone)}",
        f"turns       {_counts_told(found['turns'])}",
        f"outbox      {_outbox_told(found['outbox'])}",
        f"errors      {'of the last 24 hours:' if found['errors'] else 'none in 24 hours'}",
        *(f"  {_error_told(one, zone)}" for one in found["errors"]),
        *(["notices     urgent, told in the last 24 hours:"] if found["notices"] else []),
        *(f"  {_notice_told(one, zone)}" for one in found["notices"]),
    ]


def _credential_told(credential: dict[str, Any], zone: ZoneInfo | None) -> str:
    if credential["problem"]:
        return f"unusable: {credential['problem']}"
    if not credential["present"]:
        return "none: put one into .env for a model"
    if credential["accepted"] is None:
        return f"{credential['setting']} is set; no model was asked yet"
    if credential["accepted"]:
        return f"{credential['setting']} is accepted, last at {_at(credential['accepted_ms'], zone)}"
    return f"{credential['setting']} is set; the model does not answer"


def _refusal_told(one: dict[str, Any], zone: ZoneInfo | None) -> str:
    return f"{one['text']}, since {_at(one['since_ms'], zone)}. {one['mend']}"


def _channel_told(condition: dict[str, Any]) -> str:
    state = str(condition.get("state", "")).replace("_", " ")
    advice = condition.get("advice", "")
    return f"⚠️ {state}: {advice}" if advice else state


def _container_told(one: dict[str, Any]) -> str:
    if one["state"] == RunState.LEFT:
        since = f"given up {_span(one['state_seconds'])} ago"
        return f"{one['group']}: LEFT, {since} and not seen to be gone yet; run {one['run']}"
    turn = one["turn"]
    doing = (
        f", turn {turn['id']} ({turn['kind']}, try {turn['attempt']}) for {_span(turn['seconds'])}"
        if turn
        else ""
    )
    state = f"{one['state']} for {_span(one['state_seconds'])}"
    return f"{one['group']}: {state}{doing}; run {one['run']}, {_span(one['age_seconds'])} old"


def _conversation_told(one: dict[str, Any], zone: ZoneInfo | None) -> str:
    reason = f": {short(one['reason'], 90)}" if one["reason"] else ""
    return f"{one['group']}: {_at(one['started_ms'], zone)}, {one['mode'].replace('_', ' ')}{reason}"


def _waiting_told(one: dict[str, Any]) -> str:
    again = f", try {one['attempt']}" if one["attempt"] > 1 else ""
    later = f" in {_span(one['next_try_seconds'])}" if one["next_try_seconds"] else ""
    reason = f": {short(one['reason'], 60)}" if one["reason"] else ""
    what = f"turn {one['turn']} ({one['kind']}{again}{later})"
    return f"{one['place']}. {one['group']}: {what}, waits {_span(one['waited_seconds'])}{reason}"


def _coming_told(count: int, coming: Sequence[dict[str, Any]], zone: ZoneInfo | None) -> str:
    told = ", ".join(f"{one['group']} {_at(one['due_ms'], zone)}" for one in coming)
    return f"{count}, next: {told}" if told else "none"


def _counts_told(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none yet"


def _outbox_told(counts: dict[str, int]) -> str:
    waiting, dead = counts["waiting"], counts["dead"]
    return f"{waiting} waiting, {dead} dead" + (": see 'andy outbox list'" if dead else "")


def _error_told(one: dict[str, Any], zone: ZoneInfo | None) -> str:
    last = f"last {_at(one['last_ms'], zone)} in {one['group']}"
    return f"{one['count']} × {one['kind']}, {last}: {short(one['reason'] or 'no reason', 70)}"


def _notice_told(one: dict[str, Any], zone: ZoneInfo | None) -> str:
    number = f" {one['id']}" if one["id"] is not None else ""
    where = f"{_at(one['at_ms'], zone)} {one['group']}, turn {one['turn']}"
    return f"{where}: {one['priority']}{number} {one['event_type']}: {short(one['text'], 80)}"


def _at(at_ms: int, zone: ZoneInfo | None) -> str:
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%m-%d %H:%M")


def _span(seconds: float) -> str:
    """`12 s`, `4 min`, `3 h 5 min`, `2 days`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days"
