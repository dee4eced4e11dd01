"""Choose the models of all groups, or of one, for each kind of work, among the owner's services."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.model_services import (
    CLAUDE_NAMES,
    LEAST_WINDOW,
    OF_DOTENV,
    Ability,
    ModelService,
    WorkKind,
    read_choice,
    too_small_text,
)
from orchestrator.groups import changes
from orchestrator.store import audit
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.settings import model_services
from orchestrator.store.settings.model_services import ChosenModel

MAX_FALLBACKS = 5
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,199}")
CLEARED = "default"
"""The word that removes a choice."""


async def choose(
    tx: Tx, work: WorkKind, chosen: Sequence[ChosenModel], *, has_gateway: bool, now_ms: int
) -> None:
    """Set the models of all groups for a kind of work; an empty list removes the choice. This is audited.

    The choice applies from the next turn of each group, unless the group has a choice of its own.

    Args:
        tx: the transaction.
        work: the kind of work; it may be the list of models to fall back on.
        chosen: the models; several only for the list of models to fall back on.
        has_gateway: whether the service of `.env` is a gateway, whose models may have any names.
        now_ms: the present time, in epoch milliseconds.

    Raises:
        BadRequest: there are too many models, or one cannot be used, see `check_choice`.
    """
    services = await model_services.every(tx)
    if len(chosen) > MAX_FALLBACKS:
        raise BadRequest(f"A list to fall back on has at most {MAX_FALLBACKS} entries.")
    for choice in chosen:
        check_choice(choice.model, services, has_gateway=has_gateway)
    await model_services.choose(tx, work, chosen, now_ms=now_ms)
    detail = {"work": work.value, "models": [choice.model for choice in chosen]}
    await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind="model.chosen", detail=detail))


async def choose_for_group(
    tx: Tx, folder: str, work: WorkKind, model: str | None, *, has_gateway: bool, by: str, now_ms: int
) -> None:
    """Set the model of one group, for all of its work or for one kind of work. This is audited.

    Args:
        tx: the transaction.
        folder: the group's folder.
        work: the kind of work.
        model: the model, such as `local/qwen3`; None removes the choice.
        has_gateway: whether the service of `.env` is a gateway, whose models may have any names.
        by: who chooses.
        now_ms: the present time, in epoch milliseconds.

    Raises:
        BadRequest: the model cannot be used, see `check_choice`.
        UnknownGroup: the group is not registered.
    """
    group = await groups.known(tx, folder)
    if model is not None:
        check_choice(model, await model_services.every(tx), has_gateway=has_gateway)
    if work is WorkKind.ALL:
        await changes.configure(tx, folder, {"model": model}, by=by, now_ms=now_ms)
        return
    by_work = {**(group.container_config.get("models") or {}), work.value: model}
    stored = {name: model for name, model in by_work.items() if model is not None}
    await changes.configure(tx, folder, {"models": stored or None}, by=by, now_ms=now_ms)


async def check_settings(tx: Tx, fields: Mapping[str, Any], *, has_gateway: bool) -> None:
    """Check that the models in the settings of a group (`model`, `models`) can be used, as in `choose`.

    `has_gateway` says whether the service of `.env` is a gateway, whose models may have any names. A value of
    another type is left to `settings.checked`. Raises `BadRequest`.
    """
    by_work = fields.get("models")
    models = [fields.get("model"), *(by_work.values() if isinstance(by_work, Mapping) else ())]
    services = await model_services.every(tx)
    for model in models:
        if isinstance(model, str):
            check_choice(model, services, has_gateway=has_gateway)


def outcome_text(model: str | None, group: str | None, work: WorkKind) -> str:
    """Return a sentence for people about the model that was chosen for a kind of work.

    `model` is None if a choice was removed; `group` is None if it is the choice for all groups.
    """
    purpose = "" if work is WorkKind.ALL else f" for {work.value}"
    if model is None:
        chooser = f"the group '{group}'" if group else "all groups"
        return f"The choice of {chooser}{purpose} is cleared from the next turn on."
    users = f"The group '{group}' uses" if group else "All groups without a choice of their own use"
    return f"{users} {model}{purpose} from the next turn on."


def check_choice(text: str, services: Sequence[ModelService], *, has_gateway: bool) -> None:
    """Check that a text such as `local/qwen3` names a model that can be used.

    `services` are the known services of models. `has_gateway` says whether the service of `.env` is a
    gateway, whose models may have any names.

    Raises:
        BadRequest: it is no model, names an unknown service, or one without a model of its own, or one that
            does not stream its answers or takes too few tokens.
    """
    if not MODEL_NAME.fullmatch(text):
        raise BadRequest(f"'{text[:60]}' is no model: write SERVICE/MODEL, such as local/qwen3.")
    _check_service(text, services, has_gateway=has_gateway)
    choice = read_choice(text, services)
    if choice.service != OF_DOTENV and choice.model is None:
        raise BadRequest(f"'{choice.service}' has no model of its own: write {choice.service}/MODEL.")
    service = next((candidate for candidate in services if candidate.name == choice.service), None)
    if service is not None:
        _check_fitness(service, choice.model)


def _check_fitness(service: ModelService, model: str | None) -> None:
    """Check that a service has what the agent needs, as far as its test has shown that.

    `model` is the chosen model. Raises `BadRequest` if the service does not stream, or takes too few tokens.
    """
    if service.tested_ms is not None and Ability.STREAM not in service.abilities:
        raise BadRequest(
            f"'{service.name}' did not stream its answer when it was tested, and the agent needs that:"
            f" see 'andy models test {service.name}'."
        )
    # The stored window is that of the service's own model; another model's is not known.
    is_known = service.window is not None and model == service.model
    if is_known and service.window is not None and service.window < LEAST_WINDOW:
        raise BadRequest(f"'{service.name}' takes {service.window:,} tokens, and {too_small_text()}.")


def _check_service(text: str, services: Sequence[ModelService], *, has_gateway: bool) -> None:
    """Check that a chosen model names a known service, or may be a model of the service of `.env`.

    That service has all models of Claude, and any others if it is a gateway (`has_gateway`). Raises
    `BadRequest`, with a suggestion, if the choice names no known service.
    """
    # A typing mistake in a service's name would send prompts to the service of `.env`, against the owner's
    # wish.
    name, slash, _ = text.partition("/")
    known = [OF_DOTENV, *(service.name for service in services)]
    near = get_close_matches(name, known, n=1, cutoff=0.75)
    is_claude = not slash and any(family in name.lower() for family in CLAUDE_NAMES)
    if name in known or is_claude or (has_gateway and not (slash and near)):
        return
    at_dotenv = f"A model of that name at the service of .env is {OF_DOTENV}/{text}."
    if near:
        raise BadRequest(f"There is no service '{name}': is it {near[0]}? {at_dotenv}")
    if slash:
        raise BadRequest(
            f"There is no service '{name}': choose one of 'andy models list', or add it with"
            f" 'andy models add {name}'. {at_dotenv}"
        )
    raise BadRequest(
        f"'{text}' is neither a service nor a model of Claude's: write SERVICE/{text}, with a service of"
        f" 'andy models list'. {at_dotenv}"
    )
