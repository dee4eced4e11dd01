"""Now: what needs the owner, whether everything works, what each group does, what is next, and the cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import Any, Literal

from starlette.responses import Response

from orchestrator.channels.description import ChannelDescription
from orchestrator.domain.dashboard import BoardTask
from orchestrator.domain.values import TurnId
from orchestrator.reports import costs
from orchestrator.reports.status import StatusView
from orchestrator.store.conversation import messages, outbox
from orchestrator.store.conversation.messages import GroupSummary
from orchestrator.store.runs import turns
from orchestrator.web.console import needs
from orchestrator.web.console.form_tokens import SentForm
from orchestrator.web.console.page import NEEDS, Page, View
from orchestrator.web.console.pages import board, channels, coming

WORK = ("turn.*", "run.*", "message.queued", "conversation.*")
NEXT = ("command.*", "task.*", "reminder.*", "turn.answered")
LIGHTS = ("channel.*", "run.ended", "turn.failed", "message.*", "host.*", "command.model_missing")
GIB = 2**30
MOST_NEXT = 4
"""The number of things to come that are listed."""
MAX_GROUPS = 10
"""The number of groups that are listed, beside those at work."""
LOW_BYTES, FULL_BYTES = 5 * GIB, GIB

Colour = Literal["ok", "warn", "bad", "quiet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    text: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group as this page lists it: what its agent does and what waits for it."""

    folder: str
    name: str
    running: int | None
    """The number of the turn that runs; None where none does."""
    notes: tuple[str, ...]
    badges: tuple[Badge, ...]

    @property
    def is_at_work(self) -> bool:
        """Whether a container of the group runs or starts, or a turn of the group waits."""
        return bool(self.notes or self.badges)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficLight:
    """One thing that has to work: how it is, and what to do about it."""

    name: str
    colour: Colour
    text: str
    fix: str = ""
    page: str = ""
    """The name of the page that has more of it."""


async def show(view: View) -> Response:
    """Show what waits for the owner, what works, what each group does, what comes next, and the cost.

    The number of failing parts is stored for the navigation of all pages.
    """
    status = await view.api.status()
    host = view.host
    waiting = await needs.read_waiting(view) if view.waiting is None else view.waiting
    next_lines = await coming.next_lines(view, limit=MOST_NEXT)
    async with host.reader.reading() as tx:
        recent = await messages.group_summaries(tx)
        requests = {
            turn.id: await messages.requests_of(tx, turn.id, limit=1) for turn in waiting.needs.failed
        }
        today = await costs.usage_today(tx, now_ms=view.now_ms, zone=host.settings.zone)
        budgets = await costs.budgets(tx, now_ms=view.now_ms, zone=host.settings.zone)
    today_date = datetime.fromtimestamp(view.now_ms / 1000, host.settings.zone).date().isoformat()
    lights = list(_lights(view, status))
    bad_or_warn = [light for light in lights if light.colour in ("bad", "warn")]
    # Every page's navigation counts the failing parts, but only this page looks for them.
    view.console.failing_parts = sum(light.colour == "bad" for light in lights)
    view.needs = len(waiting) + view.console.failing_parts
    return view.render(
        "now.html",
        found=status,
        waiting=waiting,
        asked={turn: asking[0].text for turn, asking in requests.items() if asking},
        seen_of=partial(board.shown_row, view),
        lateness=partial(_lateness, view),
        advice=partial(channels.advice, view),
        local_ms=local_ms,
        troubles=bad_or_warn,
        works=[light for light in lights if light.colour not in ("bad", "warn")],
        today_date=today_date,
        today=today,
        budgets=[budget for budget in budgets if budget["group"] is None],
        coming=next_lines,
        rows=_rows(view, status, recent),
        working=sum(container["turn"] is not None for container in status["containers"]),
    )


async def put_aside(view: View, _: SentForm) -> Response:
    """Dismiss the failed turn that the address names, so that it no longer waits for the owner.

    A turn that is not stored any more changes nothing.
    """
    async with view.host.database.transaction() as tx:
        turn = await turns.get(tx, TurnId(int(view.path_param("number"))))
        if turn is not None:
            await turns.dismiss(tx, turn)
    return view.done("/now", view.t(".is_put_aside"))


def _rows(view: View, status: StatusView, recent: Collection[GroupSummary]) -> list[GroupRow]:
    """Return the rows of all groups at work, and of groups that were active last, up to `MAX_GROUPS` in all.

    `status` is the report of the host's status, `recent` all groups with the most recently active first.
    """
    # Made from `recent` alone: a group may have been registered after the status was read.
    rows = [_row(view, status, str(summary.folder), summary.name) for summary in recent]
    # Groups at work come first; the sort leaves all others in their order.
    rows.sort(key=lambda row: not row.is_at_work)
    return [row for index, row in enumerate(rows) if row.is_at_work or index < MAX_GROUPS]


def _row(view: View, status: StatusView, folder: str, name: str) -> GroupRow:
    """Return the row of a group: what its containers do, and which of its turns wait.

    A container without a turn is shown only if it starts, or was given up (`left`): the host no longer reads
    it, or cannot remove it. `status` is the report of the host's status.
    """
    running: int | None = None
    notes: list[str] = []
    badges: list[Badge] = []
    for container in status["containers"]:
        if container["group"] != folder:
            continue
        if turn := container["turn"]:
            running = turn["id"]
            key = ".turn_since" if turn["attempt"] == 1 else ".turn_again_since"
            notes.append(view.t(key, attempt=turn["attempt"], span=view.span(turn["seconds"])))
            badges.append(Badge(text=view.t(f".state_{container['state']}"), colour="run busy"))
        elif container["state"] in ("starting", "left"):
            badges.append(Badge(text=view.t(f".state_{container['state']}"), colour="quiet"))
    for waiting_turn in status["waiting"]:
        if waiting_turn["group"] == folder:
            why = f" · {view.reason(waiting_turn['reason'])}" if waiting_turn["reason"] else ""
            notes.append(view.t(".waits", span=view.span(waiting_turn["waited_seconds"])) + why)
            badges.append(Badge(text=view.t(".place", n=waiting_turn["place"]), colour="quiet"))
    return GroupRow(folder=folder, name=name, running=running, notes=tuple(notes), badges=tuple(badges))


async def show_count(view: View) -> Response:
    """Show the number of things that wait for the owner, for the navigation of every page."""
    return view.render("needs.html")


async def retry(view: View, _: SentForm) -> Response:
    """Queue the message that the address names again, if it was given up or perhaps did not arrive."""
    number = int(view.path_param("number"))
    async with view.host.database.transaction() as tx:
        is_revived = await outbox.revive(tx, number, now_ms=view.now_ms)
    return view.done("/now", view.t(".retried") if is_revived else view.t(".not_dead"))


def _lights(view: View, system: StatusView) -> Iterator[TrafficLight]:
    """Yield a traffic light for each thing that has to work, from `system`, the host's status."""
    yield _credential_light(view, system)
    for messenger in view.services.channels.messengers:
        status = system["channels"].get(messenger.name, {})
        # A login that has ended is listed among what waits for the owner instead.
        if status.get("state") not in needs.ENDED:
            yield _connection_light(view, messenger, status)
    yield _engine_light(view, system)
    yield _disk_light(view, system["disk_free_bytes"])
    # Messages that failed are listed one by one, among what waits for the owner.
    if not system["outbox"]["dead"] and not system["outbox"]["unknown"]:
        text = view.t(".outbox_ok", n=system["outbox"]["waiting"])
        yield TrafficLight(name=view.t(".outbox"), colour="ok", text=text)
    for failure in system["failing"]:
        yield TrafficLight(
            name=failure["name"],
            colour="bad",
            text=view.t(".part_fails", reason=failure["reason"], ago=view.ago(failure["since_ms"])),
            fix=view.t(".part_fails_fix"),
            page="log",
        )


def _lateness(view: View, task: BoardTask) -> str:
    """Return how late a task is, for people: in days if it was due on a day, else to the minute."""
    assert task.deadline is not None, "what has no deadline is not late"
    if task.deadline.date is None:
        return view.t(".late", span=view.span((view.now_ms - task.deadline.at_ms) / 1000))
    today = datetime.fromtimestamp(view.now_ms / 1000, view.console.zone).date()
    # The day is over in the group's time zone, but may still go on in that of the console.
    days = max(1, (today - date.fromisoformat(task.deadline.date)).days)
    return view.t(".late_day") if days == 1 else view.t(".late_days", n=days)


def local_ms(text: str) -> int:
    """Return a time in ISO form, as reports have it, in epoch milliseconds. Pure."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _connection_light(view: View, messenger: ChannelDescription, status: dict[str, Any]) -> TrafficLight:
    """Return the traffic light of the connection to a messenger, whose report is `status`."""
    state = str(status.get("state", "unpaired"))
    colours: dict[str, Colour] = {"connected": "ok", "unpaired": "quiet"}
    has_text = view.console.catalogue.has(f"now.channel_{state}")
    return TrafficLight(
        name=messenger.title,
        colour=colours.get(state, "warn"),
        text=view.t(f".channel_{state}") if has_text else state.replace("_", " "),
        fix=channels.advice(view, messenger, status),
        page="channels",
    )


def _credential_light(view: View, status: StatusView) -> TrafficLight:
    """Return the traffic light for the key of the model service: whether it is there and is accepted."""
    credential, name = status["credential"], view.t(".key")
    if credential["problem"]:
        return TrafficLight(name=name, colour="bad", text=credential["problem"], fix=view.t(".key_fix"))
    if credential["refusals"]:
        refusal = credential["refusals"][0]
        return TrafficLight(name=name, colour="bad", text=refusal["text"], fix=refusal["mend"])
    if not credential["present"]:
        is_needed = status["agent"] != "offline"
        return TrafficLight(
            name=name,
            colour="bad" if is_needed else "quiet",
            text=view.t(".key_none"),
            fix=view.t(".key_fix"),
        )
    if credential["accepted"]:
        text = view.t(
            ".key_accepted", key=credential["setting"], ago=view.ago(credential["accepted_ms"] or 0)
        )
        return TrafficLight(name=name, colour="ok", text=text)
    text = view.t(".key_unasked", key=credential["setting"])
    return TrafficLight(name=name, colour="warn", text=text, fix=view.t(".key_unasked_fix"))


def _engine_light(view: View, status: StatusView) -> TrafficLight:
    """Return the traffic light that says whether containers can run, and whether they isolate the agents."""
    name = view.t(".engine")
    if not status["engine"]:
        return TrafficLight(name=name, colour="bad", text=view.t(".engine_gone"), fix=view.t(".engine_fix"))
    if status["image_problem"]:
        return TrafficLight(name=name, colour="bad", text=status["image_problem"])
    if not status["isolated"]:
        text = view.t(".engine_open", runtime=status["runtime"])
        return TrafficLight(name=name, colour="warn", text=text, fix=view.t(".engine_open_fix"))
    image = status["image"] or "–"
    return TrafficLight(
        name=name, colour="ok", text=view.t(".engine_ok", runtime=status["runtime"], image=image)
    )


def _disk_light(view: View, free_bytes: int) -> TrafficLight:
    """Return the traffic light that says whether the disk has room."""
    colour: Colour = "bad" if free_bytes < FULL_BYTES else "warn" if free_bytes < LOW_BYTES else "ok"
    return TrafficLight(
        name=view.t(".disk"),
        colour=colour,
        text=view.t(".disk_free", gib=f"{free_bytes / GIB:,.1f}"),
        fix="" if colour == "ok" else view.t(".disk_fix"),
    )


PAGE = Page(
    name="now",
    order=10,
    is_daily=True,
    shows={"/now": show, "/needs": show_count},
    changes={
        "/now/outbox/{number:number}/retry": retry,
        "/now/turns/{number:number}/aside": put_aside,
    },
    live={
        "waiting": NEEDS,
        "lights": LIGHTS,
        "work": (*WORK, "group.*"),
        "next": NEXT,
        "cost": ("turn.answered", "turn.failed"),
    },
)
