"""The services that have models: add one, choose among them, remove one, and rows and lines of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypedDict
from urllib.parse import urlsplit

from orchestrator.base import installation
from orchestrator.base.tables import table
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.failures import ModelError, ServiceTrouble, service_trouble
from orchestrator.domain.model_services import (
    LEAST_WINDOW,
    MAX_WINDOW,
    OF_DOTENV,
    PRESETS,
    Ability,
    ModelChoice,
    ModelService,
    ServicePrice,
    WorkKind,
    read_choice,
    too_small_text,
)
from orchestrator.domain.values import TurnKind
from orchestrator.groups import settings as group_settings
from orchestrator.groups.model_choices import MODEL_NAME, check_choice
from orchestrator.home.settings import Settings
from orchestrator.proxies.model.credentials import is_secret_name
from orchestrator.proxies.model.routing import ModelRouter, read_catalog
from orchestrator.store import audit
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import model_refusals, turn_moves
from orchestrator.store.settings import model_services

_WORK = (
    ("", TurnKind.CHAT, False),
    ("tasks", TurnKind.TASK, True),
    ("worker", TurnKind.WORKER, False),
)
"""The kinds of work: each with its kind of turn, and whether it runs in a conversation of its own."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,99}")
MAX_FIRST_BYTE_SECONDS = 86_400
"""The longest time that a service may have to begin an answer: a day."""


def service_of(
    name: str,
    *,
    kind: str | None,
    url: str | None = None,
    model: str | None = None,
    key_env: str | None = None,
    window: int | None = None,
    price: str | None = None,
    first_byte_seconds: int | None = None,
) -> ModelService:
    """Return a model service with these values; a `url` or `key_env` that is None is taken from its kind.

    `kind` may be None if `name` is the name of a kind. `key_env` is the name in `.env` that has the key;
    `window` is the number of tokens that the model takes. `price` is dollars for a million tokens, in and
    out, such as `0.6,2.5`. `first_byte_seconds` is how long an answer may take to begin.

    Raises:
        BadRequest: the kind or the address is missing, the kind is unknown, or the price cannot be read. Also
            if Andy runs in a container of Compose and the kind's own address is 127.0.0.1, which is the
            container there and not this machine.
    """
    kind_name = kind or (name if name in PRESETS else None)
    if kind_name is None:
        raise BadRequest(f"Say what '{name}' is: its kind, one of {', '.join(PRESETS)}.")
    preset = PRESETS.get(kind_name)
    if preset is None:
        raise BadRequest(f"'{kind_name}' is no kind of service: {', '.join(PRESETS)}.")
    address = url or preset.url
    if address is None:
        raise BadRequest(f"Say where {preset.title} is: its URL, such as https://models.example.")
    if url is None and installation.is_in_compose() and urlsplit(address).hostname == "127.0.0.1":
        port = urlsplit(address).port
        raise BadRequest(
            f"With Compose, {address} is in Andy's own container: have {preset.title} listen on an address of"
            " this machine in your network, and give that:"
            f" 'andy models add {name} http://192.168.1.20:{port} --kind {kind_name}'."
        )
    return ModelService(
        name=name,
        kind=kind_name,
        url=address.rstrip("/"),
        key_env=key_env or preset.key_env,
        model=model,
        window=window,
        price=_parse_price(price),
        abilities=preset.abilities,
        first_byte_seconds=first_byte_seconds,
    )


def _parse_price(text: str | None) -> ServicePrice | None:
    """Return the price of a text such as `0.6,2.5`: dollars for a million tokens, in and out.

    None for None. Raises `BadRequest` if the text is no such price.
    """
    if text is None:
        return None
    try:
        input_price, output_price = (float(part) for part in text.split(","))
    except ValueError as error:
        raise BadRequest(
            f"'{text[:60]}' is no price: write dollars for a million tokens, in and out: 0.6,2.5."
        ) from error
    if not (0 <= input_price <= 1_000_000 and 0 <= output_price <= 1_000_000):
        raise BadRequest("A price is between 0 and 1,000,000 dollars for a million tokens.")
    return ServicePrice(input_price, output_price)


async def add(tx: Tx, service: ModelService, *, now_ms: int) -> None:
    """Store a model service, in place of the one with its name, and record that in the audit.

    Raises:
        BadRequest: its name, URL, key or window cannot be used; the text says what to write.
    """
    check(service)
    await model_services.put(tx, service, now_ms=now_ms)
    detail = {**asdict(service), "abilities": sorted(service.abilities)}
    await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind="model.added", detail=detail))


async def remove(tx: Tx, name: str, *, settings: Settings, now_ms: int) -> None:
    """Remove the model service with this name, and record that in the audit.

    Raises `BadRequest` if there is none, or if a kind of work, a setting or a group still chooses it.
    """
    services = await model_services.every(tx)
    if all(service.name != name for service in services):
        raise BadRequest(f"There is no model service '{name}': see 'andy models list'.")
    choosers = dict.fromkeys(  # each once, in order
        choice.chooser
        for choice in await _choices_everywhere(tx, settings)
        if read_choice(choice.model, services).service == name
    )
    if choosers:
        raise BadRequest(f"'{name}' is still chosen by {', '.join(choosers)}: choose another there first.")
    await model_services.remove(tx, name)
    await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind="model.removed", detail={"name": name}))


@dataclass(frozen=True, slots=True)
class _StoredChoice:
    """A choice of a model, and where it was made."""

    chooser: str
    """The name of the place that chose the model, such as `the group family`."""
    model: str
    work: WorkKind | None = None
    """The kind of work of all groups that it is chosen for; None for a choice of a setting or a group."""


async def _choices_everywhere(tx: Tx, settings: Settings) -> list[_StoredChoice]:
    """Return all choices of a model: for kinds of work, in settings and by groups."""
    stored_choices = [
        _StoredChoice(f"the choice for {choice.work.value}", choice.model, choice.work)
        for choice in await model_services.choices(tx)
    ]
    models_of_settings = {
        "ANDY_MODEL": settings.andy_model,
        "AGENTS_WORKER_MODEL": settings.agents_worker_model,
        "ANDY_CONTEXT_MODEL": settings.andy_context_model,
    }
    stored_choices += [
        _StoredChoice(f"the setting {name}", model) for name, model in models_of_settings.items() if model
    ]
    for group in await groups.every(tx):
        # Read from the settings as they are stored: a group whose settings cannot be parsed still has its
        # choices, which apply again once the settings are corrected.
        model, by_work = group.container_config.get("model"), group.container_config.get("models")
        if isinstance(model, str):
            stored_choices.append(_StoredChoice(f"the group {group.folder}", model))
        stored_choices += [
            _StoredChoice(f"the group {group.folder} for {work}", model)
            for work, model in (by_work.items() if isinstance(by_work, dict) else ())
            if isinstance(model, str)
        ]
    return stored_choices


async def refused_choices(tx: Tx, settings: Settings, *, has_gateway: bool) -> list[str]:
    """Return a sentence for each stored choice of a model that cannot be used, with the reason.

    There may be some, since a setting is not checked when it is written, and the address of the service of
    `.env` may change. `has_gateway` says whether `.env` names a service other than Anthropic's own.
    """
    services = await model_services.every(tx)
    reasons = []
    for choice in await _choices_everywhere(tx, settings):
        try:
            check_choice(choice.model, services, has_gateway=has_gateway)
        except BadRequest as error:
            reasons.append(f"{choice.chooser} is {choice.model}. {error}")
    return reasons


async def note_abilities(
    tx: Tx, name: str, abilities: frozenset[Ability], *, window: int | None, now_ms: int
) -> None:
    """Store which abilities a model service showed in a test, and the size of its window in tokens.

    Of the window that was set before and the measured one (`window`, or None), the smaller is stored. One
    that was set below `LEAST_WINDOW` counts as not set. Nothing is stored for a service that is gone.
    """
    service = await model_services.by_name(tx, name)
    if service is not None:
        usable_window = (
            service.window if service.window is not None and service.window >= LEAST_WINDOW else None
        )
        smaller_window = min(
            (tokens for tokens in (usable_window, window) if tokens is not None), default=None
        )
        tested = replace(service, abilities=abilities, tested_ms=now_ms, window=smaller_window)
        await model_services.put(tx, tested, now_ms=now_ms)


class PriceView(TypedDict):
    """Dollars for a million tokens, in and out."""

    input: float
    output: float


class ModelServiceView(TypedDict):
    """A service that has models, without its key; `has_key` is None where none is wanted."""

    name: str
    kind: str
    url: str
    model: str | None
    window: int | None
    price: PriceView | None
    abilities: list[str]
    tested_ms: int | None
    key_env: str | None
    has_key: bool | None
    used_for: list[str]


class ServiceConditionView(TypedDict):
    """The state of a model service; the last five fields are None while it answers."""

    name: str
    url: str | None
    key_env: str | None
    is_usable: bool
    used_by: list[str]
    down_since_ms: int | None
    trouble: str | None
    cause: str | None
    mend: str | None
    stand_in: str | None


async def rows(tx: Tx, is_set: Callable[[str], bool], *, settings: Settings) -> list[ModelServiceView]:
    """Return the model services, as the API and `--json` show them, without their keys.

    `is_set` returns whether `.env` has a value for a name. `used_for` of a row are the kinds of work for
    which the service is chosen, and the settings and groups that choose it.
    """
    services = await model_services.every(tx)
    uses_by_service: dict[str, list[str]] = {}
    for choice in await _choices_everywhere(tx, settings):
        use = choice.work.value if choice.work is not None else choice.chooser
        uses_by_service.setdefault(read_choice(choice.model, services).service, []).append(use)
    return [
        {
            "name": service.name,
            "kind": service.kind,
            "url": service.url,
            "model": service.model,
            "window": service.window,
            "price": _price_view(service.known_price),
            "abilities": sorted(service.abilities),
            "tested_ms": service.tested_ms,
            "key_env": service.key_env,
            "has_key": None if service.key_env is None else is_set(service.key_env),
            "used_for": uses_by_service.get(service.name, []),
        }
        for service in services
    ]


def _price_view(price: ServicePrice | None) -> PriceView | None:
    """Return a price as the API shows it, in dollars for a million tokens; None if it is unknown."""
    return None if price is None else {"input": price.input, "output": price.output}


async def conditions(tx: Tx, router: ModelRouter, *, is_live: bool = True) -> list[ServiceConditionView]:
    """Return the state of each model service: who uses it, whether it answers, and what answers in its place.

    First, `router`, which chooses services, gets the present catalog of services from the database. If not
    `is_live`, no host runs: outages that the last one found may be over, and are left out. `stand_in` of a
    service in trouble is the first choice that may replace it and whose service is not in trouble itself;
    None if there is none. A choice is a service, perhaps with a model of it.
    """
    router.catalog = await read_catalog(tx)
    uses_by_service = await _uses(tx, router)
    troubles = await _troubles(tx, router.catalog.service) if is_live else {}
    rows: list[ServiceConditionView] = []
    # The service of `.env` has a name, but is no entry of the catalog, which lists the added ones.
    for name in (OF_DOTENV, *(service_entry.name for service_entry in router.catalog.services)):
        trouble = troubles.get(name)
        service = router.catalog.service(name)
        uses = uses_by_service.get(name, {})
        stand_ins = [str(stand_in) for choice in uses.values() for stand_in in router.stand_ins(choice)]
        answering = [
            stand_in
            for stand_in in stand_ins
            if read_choice(stand_in, router.catalog.services).service not in troubles
        ]
        rows.append(
            {
                "name": name,
                "url": service.url if service is not None else None,
                "key_env": service.key_env if service is not None else None,
                "is_usable": router.is_usable(name),
                "used_by": list(uses),
                "down_since_ms": trouble.since_ms if trouble else None,
                "trouble": trouble.kind.value if trouble else None,
                "cause": trouble.explanation.cause if trouble else None,
                "mend": trouble.explanation.fix if trouble else None,
                "stand_in": next(iter(answering), None) if trouble else None,
            }
        )
    return rows


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A failure of a model service: its kind, its text with the fix, and its start (epoch ms)."""

    kind: ModelError
    explanation: ServiceTrouble
    since_ms: int


async def _uses(tx: Tx, router: ModelRouter) -> dict[str, dict[str, ModelChoice]]:
    """Map the name of each model service to the groups that use it, each with its choice of a model there.

    A group uses a service for its chats, or for another kind of work if that has another service: then the
    work is named in brackets, `group (tasks)`.
    """
    uses_by_service: dict[str, dict[str, ModelChoice]] = {}
    for group in await groups.every(tx):
        config = group_settings.of(group)
        chat_choice = router.chosen_model(config, TurnKind.CHAT, is_isolated=False)
        # The first kind of work, whose name is empty, is chats.
        for work, kind, is_isolated in _WORK:
            choice = router.chosen_model(config, kind, is_isolated=is_isolated)
            if not work or choice.service != chat_choice.service:
                name = f"{group.folder} ({work})" if work else str(group.folder)
                uses_by_service.setdefault(choice.service, {})[name] = choice
    return uses_by_service


async def _troubles(tx: Tx, service_named: Callable[[str], ModelService | None]) -> dict[str, _Trouble]:
    """Map the names of model services that refuse requests or do not answer to what is wrong with them now.

    `service_named` returns a service by its name; None for that of `.env`.
    """
    troubles = {}
    for refusal in await model_refusals.unfinished(tx):
        # A refusal of one model says nothing about the service: it answers for others.
        if refusal.model is None:
            explanation = service_trouble(
                refusal.cause, setting=refusal.setting, model=None, status=refusal.status
            )
            # Only the service that `.env` names has stored refusals.
            troubles[OF_DOTENV] = _Trouble(refusal.cause, explanation, refusal.since_ms)
    for outage in await turn_moves.outages(tx):
        service = service_named(outage.service)
        setting = service.key_env if service is not None else None
        explanation = service_trouble(outage.cause, setting=setting, model=None, status=outage.status)
        troubles[outage.service] = _Trouble(outage.cause, explanation, outage.since_ms)
    return troubles


def lines(rows: Sequence[ModelServiceView]) -> list[str]:
    """Return the model services as a table for people."""
    if not rows:
        return [
            "Only the service of .env is there, under the name 'anthropic': see 'andy models add --help'."
        ]
    columns = ("name", "model", "URL", "key", "can", "used for")
    return table(columns, [_cells(row) for row in rows])


def _cells(row: ModelServiceView) -> tuple[str, ...]:
    """Return the cells of one line of the table of model services."""
    key = "none" if row["key_env"] is None else f"{row['key_env']}{'' if row['has_key'] else ', NOT SET'}"
    abilities = ", ".join(row["abilities"]) + ("" if row["tested_ms"] else " (not tested)")
    return row["name"], row["model"] or "-", row["url"], key, abilities, ", ".join(row["used_for"]) or "-"


def check(service: ModelService) -> None:
    """Raise `BadRequest` if a value of a model service, such as its name, URL or window, cannot be used."""
    if not _NAME.fullmatch(service.name) or service.name == OF_DOTENV:
        raise BadRequest(
            f"'{service.name}' cannot name a service: up to 32 of a-z, 0-9 and '-', and not '{OF_DOTENV}',"
            " which is the one of .env."
        )
    if service.kind not in PRESETS:
        raise BadRequest(f"'{service.kind}' is no kind of service: {', '.join(PRESETS)}.")
    if service.key_env is not None and not (
        _VARIABLE.fullmatch(service.key_env) and is_secret_name(service.key_env)
    ):
        raise BadRequest(
            f"'{service.key_env}' is no name of a key: put the key into .env as LOCAL_API_KEY=… and give"
            " that name; one part of it is KEY, TOKEN or SECRET."
        )
    if service.model is not None and not MODEL_NAME.fullmatch(service.model):
        raise BadRequest(f"'{service.model[:60]}' is no name of a model.")
    if service.window is not None and service.window < LEAST_WINDOW:
        raise BadRequest(f"A window of {service.window:,} tokens is too small: {too_small_text()}.")
    if service.window is not None and service.window > MAX_WINDOW:
        raise BadRequest(f"No model has a window of more than {MAX_WINDOW:,} tokens.")
    if service.first_byte_seconds is not None and service.first_byte_seconds < 1:
        raise BadRequest("A service has at least 1 second to begin an answer.")
    if service.first_byte_seconds is not None and service.first_byte_seconds > MAX_FIRST_BYTE_SECONDS:
        raise BadRequest(f"A service has at most {MAX_FIRST_BYTE_SECONDS:,} seconds to begin an answer.")
    _check_url(service)


def _check_url(service: ModelService) -> None:
    """Raise `BadRequest` if the URL of a model service cannot be used, has a password, or is unsafe.

    It has to be an address with http or https, without a query or a fragment. Plain http is safe only to this
    machine and the owner's own network.
    """
    try:
        parts = urlsplit(service.url)
        # `port` raises for a number that is no port.
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    # From `!` to `~` are the visible characters of ASCII, which leaves out blanks. Of a query or a fragment
    # that is empty, `urlsplit` leaves no trace.
    is_usable = is_usable and re.fullmatch(r"[\x21-\x7e]+", service.url) is not None
    if not is_usable or "?" in service.url or "#" in service.url:
        raise BadRequest(f"'{service.url}' is no URL of a service: write https://host[:port][/path].")
    if "@" in parts.netloc:
        raise BadRequest("A URL with a password would be shown in lists: put the key into .env.")
    if parts.scheme == "http" and not service.is_near:
        raise BadRequest(
            "What chats say goes over plain http to this machine or your own network alone: use https."
        )
