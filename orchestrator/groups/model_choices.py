"""Choose the models of all groups, or of one, for each kind of work, among the owner's services."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.model_services import (
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
CLAUDE_NAMES = ("claude", "opus", "sonnet", "haiku")
"""Words in the names of Claude's models, which need no service before them."""


async def choose(
    tx: Tx, work: WorkKind, chosen: Sequence[ChosenModel], *, has_gateway: bool, now_ms: int
) -> None:
    """Set the model for a kind of work, or the list of fallbacks; None removes the choice. Audited.

    It applies from the next turn of each group. `has_gateway` is that of `check_choice`. Raises `BadRequest`
    for an unknown service.
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
    """Set the model of one group, for all of its work or for a kind; None removes it. Audited.

    `has_gateway` is that of `check_choice`.

    Raises:
        BadRequest: it is no model, or names an unknown service or one without a model of its own.
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


def outcome_text(model: str | None, group: str | None, work: WorkKind) -> str:
    """Return what was chosen in one sentence; no group means all of them, no model a cleared choice."""
    purpose = "" if work is WorkKind.ALL else f" for {work.value}"
    if model is None:
        whose = f"the group '{group}'" if group else "all groups"
        return f"The choice of {whose}{purpose} is cleared from the next turn on."
    users = f"The group '{group}' uses" if group else "All groups without a choice of their own use"
    return f"{users} {model}{purpose} from the next turn on."


def check_choice(text: str, services: Sequence[ModelService], *, has_gateway: bool) -> None:
    """Refuse a choice that is no model, that names an unknown service, or a service without its model.

    `has_gateway` is whether a gateway is the service of `.env`: its models may have any names.
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
    """Refuse a service whose test showed that it lacks something the agent needs."""
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
    """Refuse a choice that names no known service, unless the service of `.env` may have such a model.

    That is so with a gateway (`has_gateway`), and for every model of Claude.
    """
    # A slip in the name of a service would send prompts to the one of `.env`, which the owner did not mean.
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
