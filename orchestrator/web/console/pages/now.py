"""Now: whether everything works, with the fix where it does not; who is at work; what waits; today's cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

from starlette.responses import Response

from orchestrator.channels.description import ChannelDescription
from orchestrator.reports import costs, queues
from orchestrator.store import outbox
from orchestrator.web.console import needs
from orchestrator.web.console.forms import SentForm
from orchestrator.web.console.page import NEEDS, Page, View
from orchestrator.web.console.pages import board, channels

WORK = ("turn.*", "run.*", "message.queued", "conversation.*")
LIGHTS = ("channel.*", "run.ended", "turn.failed", "message.*", "host.*", "command.model_missing")
GIB = 2**30
LOW_BYTES, FULL_BYTES = 5 * GIB, GIB
ENDED = ("logged_out", "banned", "replaced", "outdated", "unusable")
"""States of a messenger that end only by what its owner does."""
MAX_GIVEN_UP = 20

Colour = Literal["ok", "warn", "bad", "quiet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficLight:
    """One thing that has to work: how it is, and what to do about it."""

    name: str
    colour: Colour
    text: str
    fix: str = ""
    link: str = ""


async def show(view: View) -> Response:
    found = await view.api.status()
    host = view.web.host
    waiting = await needs.look(view)
    async with host.reader.reading() as tx:
        unsent = await queues.outbox_rows(tx, limit=200)
        days = await costs.usage(tx, None, by="day", now_ms=view.now_ms, zone=host.settings.zone)
    today = datetime.fromtimestamp(view.now_ms / 1000, host.settings.zone).date().isoformat()
    lights = list(_lights(view, found))
    troubles = [one for one in lights if one.colour in ("bad", "warn")]
    if not waiting.is_backup_old:
        lights.append(_backup(view, waiting.backup_ms))
    view.console.troubles = sum(one.colour == "bad" for one in troubles)
    view.needs = len(waiting) + view.console.troubles
    return view.render(
        "now.html",
        found=found,
        waiting=waiting,
        seen_of=partial(board.seen_row, view),
        troubles=troubles,
        works=[one for one in lights if one.colour not in ("bad", "warn")],
        given_up=[row for row in unsent if row["state"] in ("unknown", "dead")][:MAX_GIVEN_UP],
        today=next((row for row in days["rows"] if row["day"] == today), None),
        budgets=[one for one in days["budgets"] if one["group"] is None],
        held=sum(one["state"] not in ("left", "ready") for one in found["containers"]),
    )


async def show_count(view: View) -> Response:
    """Show the number of things that wait, as the navigation of each page has it."""
    return view.render("needs.html")


async def retry(view: View, _: SentForm) -> Response:
    """Queue a message again that is dead, or of which it is unknown whether it arrived."""
    number = view.given("number")
    async with view.web.host.database.transaction() as tx:
        is_revived = number.isdigit() and await outbox.revive(tx, int(number[:15]), now_ms=view.now_ms)
    view.web.host.wakeups.outbox.set()
    return view.done("/now", view.t(".retried") if is_revived else view.t(".not_dead"))


def _lights(view: View, found: dict[str, Any]) -> Iterator[TrafficLight]:
    yield _key(view, found)
    for messenger in view.web.channels.messengers:
        yield _connection(view, messenger, found["channels"].get(messenger.name, {}))
    yield _engine(view, found)
    yield _disk(view, found["disk_free_bytes"])
    yield _outbox(view, found["outbox"])
    for one in found["failing"]:
        yield TrafficLight(
            name=one["name"],
            colour="bad",
            text=view.t(".part_fails", reason=one["reason"], ago=view.ago(one["since_ms"])),
            fix=view.t(".part_fails_fix"),
            link=view.url("/log") if view.console.page("log") else "",
        )


def _outbox(view: View, counts: dict[str, int]) -> TrafficLight:
    name = view.t(".outbox")
    if counts["dead"]:
        text, fix = view.t(".outbox_dead", n=counts["dead"]), view.t(".outbox_fix")
        return TrafficLight(name=name, colour="bad", text=text, fix=fix, link="#dead")
    if counts["unknown"]:
        text, fix = view.t(".outbox_unknown", n=counts["unknown"]), view.t(".outbox_unknown_fix")
        return TrafficLight(name=name, colour="warn", text=text, fix=fix, link="#dead")
    return TrafficLight(name=name, colour="ok", text=view.t(".outbox_ok", n=counts["waiting"]))


def _connection(view: View, messenger: ChannelDescription, status: dict[str, Any]) -> TrafficLight:
    state = str(status.get("state", "unpaired"))
    colours: dict[str, Colour] = {"connected": "ok", "unpaired": "quiet", **dict.fromkeys(ENDED, "bad")}
    known = view.console.catalogue.has(f"now.channel_{state}")
    return TrafficLight(
        name=messenger.title,
        colour=colours.get(state, "warn"),
        text=view.t(f".channel_{state}") if known else state.replace("_", " "),
        fix=channels.advice(view, messenger, status),
        link=view.url("/channels") if view.console.page("channels") else "",
    )


def _key(view: View, found: dict[str, Any]) -> TrafficLight:
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
        text = view.t(".key_accepted", key=credential["setting"], ago=view.ago(credential["accepted_ms"]))
        return TrafficLight(name=name, colour="ok", text=text)
    if credential["accepted"] is None:
        text = view.t(".key_unasked", key=credential["setting"])
        return TrafficLight(name=name, colour="warn", text=text, fix=view.t(".key_unasked_fix"))
    text = view.t(".key_silent", key=credential["setting"])
    return TrafficLight(name=name, colour="bad", text=text, fix=view.t(".key_silent_fix"))


def _engine(view: View, found: dict[str, Any]) -> TrafficLight:
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


def _backup(view: View, made_ms: int | None) -> TrafficLight:
    text = view.t(".backup_none") if made_ms is None else view.ago(made_ms)
    return TrafficLight(name=view.t(".backup"), colour="ok", text=text)


PAGE = Page(
    name="now",
    order=10,
    is_daily=True,
    shows={"/now": show, "/needs": show_count},
    changes={"/now/outbox/{number}/retry": retry},
    live={"waiting": NEEDS, "lights": LIGHTS, "work": WORK, "cost": ("turn.answered", "turn.failed")},
)
