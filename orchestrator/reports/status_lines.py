"""Shows the status of a running Andy to people: the page of `andy status`. Pure, and quick to load."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from orchestrator.base.tables import short
from orchestrator.domain.values import RunState

if TYPE_CHECKING:  # the modules that make the status load slowly, and only their types are needed
    from orchestrator.base.supervision import LoopFailureView
    from orchestrator.containers.live_runs import ForesightView
    from orchestrator.proxies.model.credentials import CredentialView, RefusalView
    from orchestrator.reports.models import ServiceConditionView
    from orchestrator.reports.notices import DeliveredNoticeView
    from orchestrator.reports.status import (
        ChannelState,
        ContainerView,
        ConversationView,
        DueView,
        OutageView,
        OutboxCounts,
        SettingChange,
        StatusView,
        WaitingTurnView,
    )
    from orchestrator.store.runs.runs import FailureCount

NO_TASKS = "none scheduled"
"""The text for no scheduled tasks; tasks of people are on the dashboards."""
NO_ENGINE = "⚠️ Docker does not answer, so no turn is begun: start it ('andy doctor' says more)"


def lines(found: StatusView, *, zone: ZoneInfo | None = None) -> list[str]:
    """Return the lines of `andy status`; without a zone, times are by this machine's clock."""
    isolation = "isolated" if found["isolated"] else "NOT isolated"
    image = f", image {found['image']}" if found["image"] else ""
    stopping = " and is stopping" if found["stopping"] else ""
    states = [one["state"] for one in found["containers"]]
    held = sum(state not in (RunState.LEFT, RunState.READY) for state in states)
    ready = states.count(RunState.READY)
    return [
        f"Andy {found['version']} runs on {found['home']} for {_span(found['uptime_seconds'])}{stopping}",
        f"agent       {found['agent']} in {found['runtime']} ({isolation}){image}",
        *([] if found["engine"] else [f"engine      {NO_ENGINE}"]),
        *([f"image       ⚠️ {found['image_problem']}"] if found["image_problem"] else []),
        # `get`: an Andy of an earlier version, which still runs after an upgrade, sends no such key.
        *(
            [f"settings    ⚠️ {_changed_text(found['settings_changed'])}"]
            if found.get("settings_changed")
            else []
        ),
        f"credential  {_credential_text(found['credential'], zone)}",
        *_service_lines(found.get("models", ()), zone),
        *(f"model       ⚠️ {outage_text(one, zone)}" for one in found["outages"] if one["cause"] == "model"),
        *(f"model       ⚠️ {_refusal_text(one, zone)}" for one in found["credential"]["refusals"]),
        f"disk        {found['disk_free_bytes'] / 2**30:,.1f} GiB free",
        *(f"{name:<11} {_channel_text(one)}" for name, one in found["channels"].items()),
        *(f"FAILING     ⚠️ {_failing_text(one, zone)}" for one in found.get("failing", ())),
        f"groups      {', '.join(found['groups'])}",
        *([f"OPEN        ⚠️ all of the internet: {', '.join(found['open'])}"] if found["open"] else []),
        f"containers  {held} of {found['slots']}{f', {ready} ready' if ready else ''}",
        *(f"  {_container_text(one)}" for one in found["containers"]),
        *_foresight_lines(found["foresight"]),
        *(["last starts"] if found["conversations"] else []),
        *(f"  {_conversation_text(one, zone)}" for one in found["conversations"]),
        f"waiting     {len(found['waiting']) or 'nothing'}",
        *(f"  {_waiting_text(one)}" for one in found["waiting"]),
        f"reminders   {_coming_text(found['reminders']['pending'], found['reminders']['next'], zone)}",
        f"tasks       {_coming_text(found['tasks']['active'], found['tasks']['next'], zone, none=NO_TASKS)}",
        f"turns       {_counts_text(found['turns'])}",
        f"outbox      {_outbox_text(found['outbox'])}",
        f"errors      {'of the last 24 hours:' if found['errors'] else 'none in 24 hours'}",
        *(f"  {_error_text(one, zone)}" for one in found["errors"]),
        *(["notices     urgent, told in the last 24 hours:"] if found["notices"] else []),
        *(f"  {_notice_text(one, zone)}" for one in found["notices"]),
    ]


def _changed_text(changed: Sequence[SettingChange]) -> str:
    """Name the settings that the next start would read differently, with their places."""
    names = ", ".join(f"{one['name']} ({one['source']})" if one["source"] else one["name"] for one in changed)
    return f"changed since the start, so not in force: {names}. Restart Andy"


def _credential_text(credential: CredentialView, zone: ZoneInfo | None) -> str:
    if credential["problem"]:
        return f"unusable: {credential['problem']}"
    if not credential["present"]:
        return "none: put one into .env for a model"
    if credential["accepted"] is None:
        return f"{credential['setting']} is set; no model was asked yet"
    if credential["accepted"]:
        return f"{credential['setting']} is accepted, last at {_at(credential['accepted_ms'] or 0, zone)}"
    return f"{credential['setting']} is set; the model does not answer"


def _service_lines(models: Sequence[ServiceConditionView], zone: ZoneInfo | None) -> list[str]:
    """Return a line for each model service that is used or down; the one of `.env` alone needs none."""
    shown = [one for one in models if one["used_by"] or one["down_since_ms"] is not None]
    if len(models) < 2 and all(one["down_since_ms"] is None for one in shown):
        return []
    return [f"service     {_service_text(one, zone)}" for one in shown]


def _service_text(one: ServiceConditionView, zone: ZoneInfo | None) -> str:
    whose = f"{one['name']} (for {', '.join(one['used_by']) or 'nobody now'})"
    if one["down_since_ms"] is not None:
        return f"⚠️ {whose} {service_trouble_text(one, zone)} {one['mend']}"
    return whose if one["is_usable"] else f"⚠️ {whose} has no key: put {one['key_env'] or 'one'} into .env"


def service_trouble_text(one: ServiceConditionView, zone: ZoneInfo | None) -> str:
    """Say what is wrong with a model service, since when, and what answers meanwhile."""
    meanwhile = f"{one['stand_in']} answers meanwhile" if one["stand_in"] else "nothing stands in for it"
    return f"{one['cause']} since {_at(one['down_since_ms'] or 0, zone)}; {meanwhile}."


def outage_text(one: OutageView, zone: ZoneInfo | None) -> str:
    """Return the line about a model service that turns wait for."""
    waiting = "1 turn waits" if one["turns"] == 1 else f"{one['turns']} turns wait"
    return f"slow, overloaded or out of reach since {_at(one['since_ms'], zone)}: {waiting} for it"


def _refusal_text(one: RefusalView, zone: ZoneInfo | None) -> str:
    return f"{one['text']}, since {_at(one['since_ms'], zone)}. {one['mend']}"


def _channel_text(condition: ChannelState) -> str:
    state = str(condition.get("state", "")).replace("_", " ")
    advice = condition.get("advice", "")
    return f"⚠️ {state}: {advice}" if advice else state


def _container_text(one: ContainerView) -> str:
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


def _failing_text(one: LoopFailureView, zone: ZoneInfo | None) -> str:
    since = f"since {_at(one['since_ms'], zone)}, {one['failures']} times"
    return f"{one['name']}: {short(one['reason'], 90)}, {since}; it is tried again. See 'andy logs'."


def _foresight_lines(figures: ForesightView) -> list[str]:
    hits, misses = sum(figures["hits"].values()), sum(figures["misses"].values())
    if not hits + misses:
        return []
    wasted = figures["wasted_cpu_seconds"]
    return [
        f"foresight   {hits} of {hits + misses} containers were asked something; {wasted:.1f} CPU-s in vain"
    ]


def _conversation_text(one: ConversationView, zone: ZoneInfo | None) -> str:
    reason = f": {short(one['reason'], 90)}" if one["reason"] else ""
    return f"{one['group']}: {_at(one['started_ms'], zone)}, {(one['mode'] or '').replace('_', ' ')}{reason}"


def _waiting_text(one: WaitingTurnView) -> str:
    again = f", try {one['attempt']}" if one["attempt"] > 1 else ""
    later = f" in {_span(one['next_try_seconds'])}" if one["next_try_seconds"] else ""
    reason = f": {short(one['reason'], 60)}" if one["reason"] else ""
    what = f"turn {one['turn']} ({one['kind']}{again}{later})"
    return f"{one['place']}. {one['group']}: {what}, waits {_span(one['waited_seconds'])}{reason}"


def _coming_text(count: int, coming: Sequence[DueView], zone: ZoneInfo | None, *, none: str = "none") -> str:
    next_wakes = ", ".join(f"{one['group']} {_at(one['due_ms'], zone)}" for one in coming)
    return f"{count}, next: {next_wakes}" if next_wakes else none


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none yet"


def _outbox_text(counts: OutboxCounts) -> str:
    text = f"{counts['waiting']} waiting, {counts['dead']} dead"
    if counts["unknown"]:
        text += f", {counts['unknown']} unknown"
    return text + (": see 'andy outbox list'" if counts["dead"] or counts["unknown"] else "")


def _error_text(one: FailureCount, zone: ZoneInfo | None) -> str:
    last = f"last {_at(one['last_ms'], zone)} in {one['group']}"
    return f"{one['count']} × {one['kind']}, {last}: {short(one['reason'] or 'no reason', 70)}"


def _notice_text(one: DeliveredNoticeView, zone: ZoneInfo | None) -> str:
    number = f" {one['id']}" if one["id"] is not None else ""
    where = f"{_at(one['at_ms'], zone)} {one['group']}, turn {one['turn']}"
    return f"{where}: {one['priority']}{number} {one['event_type']}: {short(one['text'], 80)}"


def _at(at_ms: int, zone: ZoneInfo | None) -> str:
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%m-%d %H:%M")


def _span(seconds: float) -> str:
    """Return a duration as `12 s`, `4 min`, `3 h 5 min` or `2 days`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days"
