"""Now: what needs the owner, whether everything works, what each group does, what is next, and the cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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
from orchestrator.web.console.forms import SentForm
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
    found = await view.api.status()
    host = view.host
    waiting = await needs.look(view) if view.waiting is None else view.waiting
    async with host.reader.reading() as tx:
        recent = await messages.group_summaries(tx)
        asked = {one.id: await messages.requests_of(tx, one.id, limit=1) for one in waiting.needs.failed}
        next_lines = await coming.next_lines(view, tx, most=MOST_NEXT)
        today = await costs.usage_today(tx, now_ms=view.now_ms, zone=host.settings.zone)
        budgets = await costs.budgets(tx, now_ms=view.now_ms, zone=host.settings.zone)
    today_date = datetime.fromtimestamp(view.now_ms / 1000, host.settings.zone).date().isoformat()
    lights = list(_lights(view, found))
    troubles = [one for one in lights if one.colour in ("bad", "warn")]
    # Every page's navigation counts the troubles, but only this page looks for them.
    view.console.troubles = sum(one.colour == "bad" for one in troubles)
    view.needs = len(waiting) + view.console.troubles
    return view.render(
        "now.html",
        found=found,
        waiting=waiting,
        asked={turn: found[0].text for turn, found in asked.items() if found},
        seen_of=partial(board.seen_row, view),
        lateness=partial(_lateness, view),
        advice=partial(channels.advice, view),
        local_ms=local_ms,
        troubles=troubles,
        works=[one for one in lights if one.colour not in ("bad", "warn")],
        today_date=today_date,
        today=today,
        budgets=[one for one in budgets if one["group"] is None],
        coming=next_lines,
        rows=_rows(view, found, recent),
        working=sum(one["turn"] is not None for one in found["containers"]),
    )


async def put_aside(view: View, _: SentForm) -> Response:
    """Take a failed turn off the list of what waits for the owner; nothing is tried again."""
    async with view.host.database.transaction() as tx:
        turn = await turns.get(tx, TurnId(int(view.given("number")[:15])))
        if turn is not None:
            await turns.put_aside(tx, turn)
    return view.done("/now", view.t(".is_put_aside"))


def _rows(view: View, found: Mapping[str, Any], recent: Collection[GroupSummary]) -> list[GroupRow]:
    """Return the groups at work, then those that were written to last, `MAX_GROUPS` as a rule."""
    # Made from `recent` alone: a group may have been registered after the status was read.
    rows = [_row(view, found, str(one.folder), one.name) for one in recent]
    rows.sort(key=lambda one: not one.is_at_work)
    return [one for place, one in enumerate(rows) if one.is_at_work or place < MAX_GROUPS]


def _row(view: View, found: Mapping[str, Any], folder: str, name: str) -> GroupRow:
    running, notes, badges = None, [], []
    for one in found["containers"]:
        if one["group"] != folder:
            continue
        if turn := one["turn"]:
            running = turn["id"]
            key = ".turn_since" if turn["attempt"] == 1 else ".turn_again_since"
            notes.append(view.t(key, attempt=turn["attempt"], span=view.span(turn["seconds"])))
            badges.append(Badge(text=view.t(f".state_{one['state']}"), colour="run busy"))
        elif one["state"] in ("starting", "left"):
            badges.append(Badge(text=view.t(f".state_{one['state']}"), colour="quiet"))
    for one in found["waiting"]:
        if one["group"] == folder:
            why = f" · {view.reason(one['reason'])}" if one["reason"] else ""
            notes.append(view.t(".waits", span=view.span(one["waited_seconds"])) + why)
            badges.append(Badge(text=view.t(".place", n=one["place"]), colour="quiet"))
    return GroupRow(folder=folder, name=name, running=running, notes=tuple(notes), badges=tuple(badges))


async def show_count(view: View) -> Response:
    """Show the number of things that wait, as the navigation of each page has it."""
    return view.render("needs.html")


async def retry(view: View, _: SentForm) -> Response:
    """Queue a message again that is dead, or of which it is unknown whether it arrived."""
    number = view.given("number")
    async with view.host.database.transaction() as tx:
        is_revived = number.isdigit() and await outbox.revive(tx, int(number[:15]), now_ms=view.now_ms)
    return view.done("/now", view.t(".retried") if is_revived else view.t(".not_dead"))


def _lights(view: View, found: StatusView) -> Iterator[TrafficLight]:
    yield _key(view, found)
    for messenger in view.services.channels.messengers:
        status = found["channels"].get(messenger.name, {})
        # A login that has ended is listed among what waits for the owner instead.
        if status.get("state") not in needs.ENDED:
            yield _connection(view, messenger, status)
    yield _engine(view, found)
    yield _disk(view, found["disk_free_bytes"])
    # Messages that failed are listed one by one, among what waits for the owner.
    if not found["outbox"]["dead"] and not found["outbox"]["unknown"]:
        text = view.t(".outbox_ok", n=found["outbox"]["waiting"])
        yield TrafficLight(name=view.t(".outbox"), colour="ok", text=text)
    for one in found["failing"]:
        yield TrafficLight(
            name=one["name"],
            colour="bad",
            text=view.t(".part_fails", reason=one["reason"], ago=view.ago(one["since_ms"])),
            fix=view.t(".part_fails_fix"),
            page="log",
        )


def _lateness(view: View, task: BoardTask) -> str:
    """Return since when a task is late: days for one that was due on a day, else as exactly as it was due."""
    assert task.deadline is not None, "what has no deadline is not late"
    if task.deadline.date is None:
        return view.t(".late", span=view.span((view.now_ms - task.deadline.at_ms) / 1000))
    today = datetime.fromtimestamp(view.now_ms / 1000, view.console.zone).date()
    days = (today - date.fromisoformat(task.deadline.date)).days
    return view.t(".late_day") if days == 1 else view.t(".late_days", n=days)


def local_ms(text: str) -> int:
    """Return a local time as a report writes it in epoch milliseconds. Pure."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _connection(view: View, messenger: ChannelDescription, status: dict[str, Any]) -> TrafficLight:
    state = str(status.get("state", "unpaired"))
    colours: dict[str, Colour] = {"connected": "ok", "unpaired": "quiet"}
    known = view.console.catalogue.has(f"now.channel_{state}")
    return TrafficLight(
        name=messenger.title,
        colour=colours.get(state, "warn"),
        text=view.t(f".channel_{state}") if known else state.replace("_", " "),
        fix=channels.advice(view, messenger, status),
        page="channels",
    )


def _key(view: View, found: StatusView) -> TrafficLight:
    credential, name = found["credential"], view.t(".key")
    if credential["problem"]:
        return TrafficLight(name=name, colour="bad", text=credential["problem"], fix=view.t(".key_fix"))
    if credential["refusals"]:
        one = credential["refusals"][0]
        return TrafficLight(name=name, colour="bad", text=one["text"], fix=one["mend"])
    if not credential["present"]:
        is_needed = found["agent"] != "offline"
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
    if credential["accepted"] is None:
        text = view.t(".key_unasked", key=credential["setting"])
        return TrafficLight(name=name, colour="warn", text=text, fix=view.t(".key_unasked_fix"))
    text = view.t(".key_silent", key=credential["setting"])
    return TrafficLight(name=name, colour="bad", text=text, fix=view.t(".key_silent_fix"))


def _engine(view: View, found: StatusView) -> TrafficLight:
    name = view.t(".engine")
    if not found["engine"]:
        return TrafficLight(name=name, colour="bad", text=view.t(".engine_gone"), fix=view.t(".engine_fix"))
    if found["image_problem"]:
        return TrafficLight(name=name, colour="bad", text=found["image_problem"])
    if not found["isolated"]:
        text = view.t(".engine_open", runtime=found["runtime"])
        return TrafficLight(name=name, colour="warn", text=text, fix=view.t(".engine_open_fix"))
    image = found["image"] or "–"
    return TrafficLight(
        name=name, colour="ok", text=view.t(".engine_ok", runtime=found["runtime"], image=image)
    )


def _disk(view: View, free: int) -> TrafficLight:
    colour: Colour = "bad" if free < FULL_BYTES else "warn" if free < LOW_BYTES else "ok"
    return TrafficLight(
        name=view.t(".disk"),
        colour=colour,
        text=view.t(".disk_free", gib=f"{free / GIB:,.1f}"),
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
