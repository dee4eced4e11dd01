"""Judge a world whose agents ask a model by what was promised of model services that do not answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.domain.model_services import OF_DOTENV
from tests.simulation.loop import START_MS
from tests.simulation.people import ASKING
from tests.simulation.services import SERVICES_RECOVER_SECONDS

if TYPE_CHECKING:
    from tests.simulation.people import Written
    from tests.simulation.services import Asked
    from tests.simulation.world import World

ANSWER_SECONDS = 60.0
"""Seconds that a turn may take from its first try, where a service on the list works."""
NO_MODEL = "the model service does not know"
"""Words of a notice that one model is missing, which has no end of its own."""
SILENT_SECONDS = 600.0
"""Seconds that a service may be silent where no other would go on as a request is made."""
RESTART_SECONDS = 100.0
"""Seconds from the start of a host after which it has asked the services that were down."""


def services(world: World) -> Iterator[str]:
    """Yield what breaks a promise about model services."""
    if not world.plan.services.asks_model:
        return
    for find in (_answers, _waits, _moves, _returns, _notices, _left_over):
        yield from find(world)


def _answers(world: World) -> Iterator[str]:
    """With one service that works, nothing fails, and each turn ends a minute after it could be worked on."""
    if not world.plan.services.is_sound:
        return
    is_calm = world.plan.is_calm_but_for_services
    tries = first_tries(world)
    for row in world.rows(
        "SELECT id, kind, state, reason, ended_ms FROM turns"
        " WHERE id NOT IN (SELECT turn_id FROM turn_stops WHERE code = 'budget')"
    ):
        what = f"turn {row['id']} ({row['kind']})"
        if row["state"] == "failed" and (is_calm or re.search("API Error|model", row["reason"] or "")):
            yield f"Failed although a service works: {what}: {row['reason']}"
        elif row["state"] == "answered" and is_calm and row["id"] in tries:
            seconds = (row["ended_ms"] - START_MS) / 1000 - tries[row["id"]]
            if seconds > ANSWER_SECONDS:
                yield f"Answered after {seconds:.0f} s although a service works: {what}"


def _waits(world: World) -> Iterator[str]:
    """Report turns that waited on while a service worked again, in worlds where nothing else is amiss."""
    plan = world.plan.services
    if not world.plan.is_calm_but_for_services or not plan.fallbacks:
        return
    tries = first_tries(world)
    for row in world.rows("SELECT id, kind, ended_ms FROM turns WHERE state = 'answered'"):
        end_s = (row["ended_ms"] - START_MS) / 1000
        for service in (OF_DOTENV, *plan.fallbacks):
            begin_s = tries.get(row["id"], end_s)
            from_s = max([begin_s, *plan.ends_before(service, end_s)])
            longest = SERVICES_RECOVER_SECONDS + ANSWER_SECONDS
            if plan.has_silence(begin_s, end_s):
                longest += SILENT_SECONDS
            if end_s - from_s > longest:
                yield (
                    f"Answered {end_s - from_s:.0f} s after {service} worked again:"
                    f" turn {row['id']} ({row['kind']})"
                )


def first_tries(world: World) -> dict[int, float]:
    """Return when each turn was first given to a container, in virtual seconds."""
    found: dict[int, float] = {}
    for line in world.lines:
        if line.kind == "event" and line.text.startswith(("turn.started ", "turn.handed_over ")):
            number = re.search(r" turn=(\d+)", line.text)
            if number:
                found.setdefault(int(number[1]), line.at_s)
    return found


def _moves(world: World) -> Iterator[str]:
    """A turn does not go back to a service that it has left while another works."""
    if not world.plan.services.is_sound:
        return
    for written in world.people.all:
        if written.said.kind not in ASKING:
            continue
        asked = [one.service for one in _asked_of(world, written)]
        places = [one for place, one in enumerate(asked) if place == 0 or asked[place - 1] != one]
        if len(places) != len(set(places)):
            yield f"Asked at a service that it had left ({', '.join(places)}): {written.said}"


def _asked_of(world: World, written: Written) -> list[Asked]:
    """Return the requests of a turn that answers what was written, oldest first."""
    word = written.said.token
    return [
        one for one in world.services.asked if word in one.words and not one.is_of_host and not one.is_of_task
    ]


def _returns(world: World) -> Iterator[str]:
    """Report questions that went elsewhere 90 s or more after the first service worked again."""
    plan = world.plan.services
    deaths = [line.at_s for line in world.lines if line.kind == "host" and line.text.endswith(" starts")]
    for written in world.people.all:
        asked = _asked_of(world, written)
        if written.said.kind not in ASKING or not asked or asked[0].service == OF_DOTENV:
            continue
        at_s = asked[0].at_s
        is_held_up = any(0 < at_s - death < RESTART_SECONDS for death in deaths[1:])
        from_s = written.at_s - SERVICES_RECOVER_SECONDS
        if plan.has_worked_since(OF_DOTENV, from_s, at_s) and not is_held_up:
            yield f"Asked at {asked[0].service} although the first service works: {written.said}"


def _notices(world: World) -> Iterator[str]:
    """The owner reads of each outage at most once, and once of its end."""
    if world.faults.had_disk:
        return
    texts = [row["text"] for row in world.rows("SELECT text FROM outbox WHERE chat_jid = 'local:main'")]
    for text, count in Counter(text for text in texts if "budget" not in text).items():
        service = _named_in(text)
        times = sum(one.service == service for one in world.plan.services.faults)
        if count > times:
            yield f"The owner read {count} times, of {times} outages: {text!r}"
    for name in {row["service"]: None for row in world.rows("SELECT service FROM service_outages")}:
        news = [_is_begun(text) for text in texts if _is_of_outage(text) and _named_in(text) == name]
        if news != [True, False] * (len(news) // 2) or not news:
            yield f"The owner read of the begin of an outage of {name} (True) and of an end (False): {news}"


def _is_of_outage(text: str) -> bool:
    """Return whether a notice is of the begin or the end of an outage, not of one model that is missing."""
    return text.endswith("from the next turn on.") or (_is_begun(text) and NO_MODEL not in text)


def _is_begun(text: str) -> bool:
    return "answers meanwhile" in text or "on the list answers now" in text


def _named_in(text: str) -> str:
    found = re.search(r"model service '(\w+)'", text)
    return OF_DOTENV if found is None else found[1]


def _left_over(world: World) -> Iterator[str]:
    for row in world.rows("SELECT service FROM service_outages WHERE ended_ms IS NULL"):
        yield f"The outage of {row['service']} is still open."
    for row in world.rows("SELECT cause FROM model_refusals WHERE ended_ms IS NULL"):
        yield f"The refusal by the model service ({row['cause']}) is still open."
