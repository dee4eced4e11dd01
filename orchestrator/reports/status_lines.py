"""Shows the status of a running Andy to people: the page of `andy status`. Pure, and quick to load."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from orchestrator.base.clock import zone_note
from orchestrator.base.tables import counted, short
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


def lines(status: StatusView, *, zone: ZoneInfo | None = None) -> list[str]:
    """Return the lines of `andy status`; without a zone, times are by this machine's clock."""
    isolation = "isolated" if status["isolated"] else "NOT isolated"
    image = f", image {status['image']}" if status["image"] else ""
    stopping = " and is stopping" if status["stopping"] else ""
    states = [item["state"] for item in status["containers"]]
    # One that is `ready` waits for its first turn, and one that is `left` was given up.
    working = sum(state not in (RunState.LEFT, RunState.READY) for state in states)
    ready = states.count(RunState.READY)
    tasks = status["tasks"]
    return [
        f"Andy {status['version']} runs on {status['home']} for {_span(status['uptime_seconds'])}{stopping}",
        f"agent       {status['agent']} in {status['runtime']} ({isolation}){image}",
        *([] if status["engine"] else [f"engine      {NO_ENGINE}"]),
        *([f"image       ⚠️ {status['image_problem']}"] if status["image_problem"] else []),
        # `get`: an Andy of an earlier version, which still runs after an upgrade, sends no such key.
        *(
            [f"settings    ⚠️ {_changed_text(status['settings_changed'])}"]
            if status.get("settings_changed")
            else []
        ),
        f"credential  {_credential_text(status['credential'], zone)}",
        *_service_lines(status.get("models", ()), zone),
        *(
            f"model       ⚠️ {outage_text(item, zone)}"
            for item in status["outages"]
            if item["cause"] == "model"
        ),
        *(f"model       ⚠️ {_refusal_text(item, zone)}" for item in status["credential"]["refusals"]),
        f"disk        {status['disk_free_bytes'] / 2**30:,.1f} GiB free",
        *(f"{name:<11} {_channel_text(item)}" for name, item in status["channels"].items()),
        *(f"FAILING     ⚠️ {_failing_text(item, zone)}" for item in status.get("failing", ())),
        f"groups      {', '.join(status['groups'])}",
        *([f"OPEN        ⚠️ all of the internet: {', '.join(status['open'])}"] if status["open"] else []),
        f"containers  {working} of {status['slots']}{f', {ready} ready' if ready else ''}",
        *(f"  {_container_text(item)}" for item in status["containers"]),
        *_foresight_lines(status["foresight"]),
        *(["last starts"] if status["conversations"] else []),
        *(f"  {_conversation_text(item, zone)}" for item in status["conversations"]),
        f"waiting     {len(status['waiting']) or 'nothing'}",
        *(f"  {_waiting_text(item)}" for item in status["waiting"]),
        f"reminders   {_coming_text(status['reminders']['pending'], status['reminders']['next'], zone)}",
        f"tasks       {_coming_text(tasks['active'], tasks['next'], zone, none_text=NO_TASKS)}",
        f"turns       {_counts_text(status['turns'])}",
        f"outbox      {_outbox_text(status['outbox'])}",
        f"errors      {'of the last 24 hours:' if status['errors'] else 'none in 24 hours'}",
        *(f"  {_error_text(item, zone)}" for item in status["errors"]),
        *(["notices     urgent, told in the last 24 hours:"] if status["notices"] else []),
        *(f"  {_notice_text(item, zone)}" for item in status["notices"]),
    ]


def _changed_text(changed: Sequence[SettingChange]) -> str:
    """Return a text that names the settings which the next start would read differently, and from where."""
    names = ", ".join(
        f"{setting['name']} ({setting['source']})" if setting["source"] else setting["name"]
        for setting in changed
    )
    return f"changed since the start, so not in force: {names}. Restart Andy"


def _credential_text(credential: CredentialView, zone: ZoneInfo | None) -> str:
    """Return what is known of the key for the model: whether it is set, readable, and accepted."""
    if credential["problem"]:
        return f"unusable: {credential['problem']}"
    if not credential["present"]:
        return "none: put one into .env for a model"
    if credential["accepted"] is None:
        return f"{credential['setting']} is set; no model was asked yet"
    if credential["accepted"]:
        accepted_at = _minute_text(credential["accepted_ms"] or 0, zone)
        return f"{credential['setting']} is accepted, last at {accepted_at}"
    return f"{credential['setting']} is set; the model service refuses requests"


def _service_lines(models: Sequence[ServiceConditionView], zone: ZoneInfo | None) -> list[str]:
    """Return a line for each model service that is used or down; none if there is one only, and it is up."""
    shown = [service for service in models if service["used_by"] or service["down_since_ms"] is not None]
    if len(models) < 2 and all(service["down_since_ms"] is None for service in shown):
        return []
    return [f"service     {_service_text(service, zone)}" for service in shown]


def _service_text(service: ServiceConditionView, zone: ZoneInfo | None) -> str:
    """Return the state of a model service in one line, with who uses it and the fix where it is down."""
    name_and_users = f"{service['name']} (for {', '.join(service['used_by']) or 'nobody now'})"
    if service["down_since_ms"] is not None:
        return f"⚠️ {name_and_users} {service_trouble_text(service, zone)} {service['mend']}"
    return (
        name_and_users
        if service["is_usable"]
        else f"⚠️ {name_and_users} has no key: put {service['key_env'] or 'one'} into .env"
    )


def service_trouble_text(service: ServiceConditionView, zone: ZoneInfo | None) -> str:
    """Return a text that says what is wrong with a model service, since when, and what answers meanwhile."""
    meanwhile = (
        f"{service['stand_in']} answers meanwhile" if service["stand_in"] else "nothing stands in for it"
    )
    return f"{service['cause']} since {_minute_text(service['down_since_ms'] or 0, zone)}; {meanwhile}."


def outage_text(outage: OutageView, zone: ZoneInfo | None) -> str:
    """Return the text about a model service that does not answer, and how many turns wait for it."""
    waiting = "1 turn waits" if outage["turns"] == 1 else f"{outage['turns']} turns wait"
    return (
        f"slow, overloaded or out of reach since {_minute_text(outage['since_ms'], zone)}: {waiting} for it"
    )


def _refusal_text(refusal: RefusalView, zone: ZoneInfo | None) -> str:
    """Return the text about what the model service refuses: since when, and the fix."""
    return f"{refusal['text']}, since {_minute_text(refusal['since_ms'], zone)}. {refusal['mend']}"


def _channel_text(condition: ChannelState) -> str:
    """Return the state of a channel (a messenger's connection) as text, with advice if there is some."""
    state = str(condition.get("state", "on")).replace("_", " ")
    advice = condition.get("advice", "")
    return f"⚠️ {state}: {advice}" if advice else state


def _container_text(container: ContainerView) -> str:
    """Return a container in one line: its group, its state, the turn it works on, its run and age."""
    if container["state"] == RunState.LEFT:
        given_up_text = f"given up {_span(container['state_seconds'])} ago"
        return (
            f"{container['group']}: LEFT, {given_up_text} and not seen to be gone yet; run {container['run']}"
        )
    turn = container["turn"]
    doing = (
        f", turn {turn['id']} ({turn['kind']}, try {turn['attempt']}) for {_span(turn['seconds'])}"
        if turn
        else ""
    )
    state = f"{container['state']} for {_span(container['state_seconds'])}"
    return (
        f"{container['group']}: {state}{doing}; run {container['run']}, {_span(container['age_seconds'])} old"
    )


def _failing_text(failure: LoopFailureView, zone: ZoneInfo | None) -> str:
    """Return which loop fails, why, since when and how often."""
    since = f"since {_minute_text(failure['since_ms'], zone)}, {counted(failure['failures'], 'time')}"
    return f"{failure['name']}: {short(failure['reason'], 90)}, {since}; it is tried again. See 'andy logs'."


def _foresight_lines(figures: ForesightView) -> list[str]:
    """Return the line on containers that were started before anybody asked: how many of them got a turn.

    The list is empty if there were no such containers. `hits` are those that got a turn, `misses` the others.
    """
    hits, misses = sum(figures["hits"].values()), sum(figures["misses"].values())
    if not hits + misses:
        return []
    wasted = figures["wasted_cpu_seconds"]
    return [
        f"foresight   {hits} of {hits + misses} containers were asked something; {wasted:.1f} CPU-s in vain"
    ]


def _conversation_text(conversation: ConversationView, zone: ZoneInfo | None) -> str:
    """Return when and how a group's newest container went on with the conversation."""
    reason = f": {short(conversation['reason'], 90)}" if conversation["reason"] else ""
    start = _minute_text(conversation["started_ms"], zone)
    mode = (conversation["mode"] or "").replace("_", " ")
    return f"{conversation['group']}: {start}, {mode}{reason}"


def _waiting_text(turn: WaitingTurnView) -> str:
    """Return a queued turn in one line: its place, group, kind, and how long it has waited."""
    attempt_text = f", try {turn['attempt']}" if turn["attempt"] > 1 else ""
    delay_text = f" in {_span(turn['next_try_seconds'])}" if turn["next_try_seconds"] else ""
    reason = f": {short(turn['reason'], 60)}" if turn["reason"] else ""
    description = f"turn {turn['turn']} ({turn['kind']}{attempt_text}{delay_text})"
    return f"{turn['place']}. {turn['group']}: {description}, waits {_span(turn['waited_seconds'])}{reason}"


def _coming_text(
    count: int, coming: Sequence[DueView], zone: ZoneInfo | None, *, none_text: str = "none"
) -> str:
    """Return a text on reminders or tasks to come: their number, and when the next ones (`coming`) are due.

    It is `none_text` where there are none.
    """
    next_texts = ", ".join(_due_text(due, zone) for due in coming)
    return f"{count}, next: {next_texts}" if next_texts else none_text


def _due_text(due: DueView, zone: ZoneInfo | None) -> str:
    """Return the group of a reminder or task, and its time there; a zone other than `zone` is named."""
    # `get`: an Andy of an earlier version, which still runs after an upgrade, sends no such key.
    name = due.get("timezone", "")
    if not name:
        return f"{due['group']} {_minute_text(due['due_ms'], zone)}"
    return f"{due['group']} {_minute_text(due['due_ms'], ZoneInfo(name))}{zone_note(name, zone)}"


def _counts_text(counts: dict[str, int]) -> str:
    """Return the number of turns in each state as text, such as `3 answered, 1 running`."""
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none yet"


def _outbox_text(counts: OutboxCounts) -> str:
    """Return the numbers of unsent messages as text, with the command that lists them if needed."""
    text = f"{counts['waiting']} waiting, {counts['dead']} dead"
    if counts["unknown"]:
        text += f", {counts['unknown']} unknown"
    return text + (": see 'andy outbox list'" if counts["dead"] or counts["unknown"] else "")


def _error_text(failure: FailureCount, zone: ZoneInfo | None) -> str:
    """Return a kind of failure in one line: how often, and when, where and why the last time."""
    last = f"last {_minute_text(failure['last_ms'], zone)} in {failure['group']}"
    return f"{failure['count']} × {failure['kind']}, {last}: {short(failure['reason'] or 'no reason', 70)}"


def _notice_text(notice: DeliveredNoticeView, zone: ZoneInfo | None) -> str:
    """Return an urgent notice in one line: when, where, its priority, number, type and text."""
    number = f" {notice['id']}" if notice["id"] is not None else ""
    head = f"{_minute_text(notice['at_ms'], zone)} {notice['group']}, turn {notice['turn']}"
    return f"{head}: {notice['priority']}{number} {notice['event_type']}: {short(notice['text'], 80)}"


def _minute_text(at_ms: int, zone: ZoneInfo | None) -> str:
    """Return a moment as month, day and minute; without a zone, by this machine's clock."""
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
