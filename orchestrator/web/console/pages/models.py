"""Models: the services that have models, which of them answers whom, and which replaces one that is down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from starlette.responses import Response

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.model_services import PRESETS, ModelService, WorkKind
from orchestrator.domain.values import Group
from orchestrator.groups import model_choices
from orchestrator.groups import settings as group_settings
from orchestrator.reports import models as reports
from orchestrator.store.groups import groups
from orchestrator.store.settings import model_services
from orchestrator.store.settings.model_services import ChosenModel
from orchestrator.web.console.form_tokens import ChangedSince, SentForm, typed
from orchestrator.web.console.page import Page, View

BY = "the console"
WORK = (WorkKind.ALL, WorkKind.TASKS, WorkKind.WORKER, WorkKind.SUMMARIES)
"""The kinds of work that a model can be chosen for."""
NEW_FIELDS = ("name", "kind", "url", "model", "key_env", "window", "price")
CHOICE_FIELDS = ("chosen", "whose", "work")
"""The fields of the form that chooses a model: the model, the group (empty for all) and the kind of work."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A form that is shown again with the reason why nothing was done."""

    place: str
    """The form: `new`, `choice` or `fallback`."""
    reason: str
    form: SentForm


async def show(view: View) -> Response:
    """Show the model services and the models that are chosen for each kind of work."""
    return await _render(view)


async def add(view: View, form: SentForm) -> Response:
    """Add the model service in a form, or replace the one with its name; a refused form is shown again.

    Facts that the form does not have stay, such as what a test of the same model has found out.
    """
    try:
        service = reports.service_of(
            form.text("name"),
            kind=form.text("kind") or None,
            url=form.text("url") or None,
            model=form.text("model") or None,
            key_env=form.text("key_env") or None,
            window=_tokens(form.text("window")),
            price=form.text("price") or None,
        )
        async with view.host.database.transaction() as tx:
            before = await model_services.by_name(tx, service.name)
            await reports.add(tx, _with_stored_facts(service, before), now_ms=view.now_ms)
    except BadRequest as refusal:
        return await _render(view, _Refusal("new", str(refusal), form))
    return view.done("/models", view.t(".added", name=service.name))


async def remove(view: View, _: SentForm) -> Response:
    """Remove the model service that the address names."""
    host = view.host
    async with host.database.transaction() as tx:
        await reports.remove(tx, view.path_param("name"), settings=host.settings, now_ms=view.now_ms)
    return view.done("/models", view.t(".removed", name=view.path_param("name")))


async def choose(view: View, form: SentForm) -> Response:
    """Choose the model of one group, or of all, for a kind of work; an empty field clears the choice.

    A refused form is shown again.
    """
    model, folder = form.text("chosen") or None, form.text("whose") or None
    has_gateway = view.services.models.has_gateway()
    try:
        work = _work(form.text("work"))
        async with view.host.database.transaction() as tx:
            if folder is not None:
                await model_choices.choose_for_group(
                    tx, folder, work, model, has_gateway=has_gateway, by=BY, now_ms=view.now_ms
                )
            else:
                models = [] if model is None else [ChosenModel(work, model)]
                await model_choices.choose(tx, work, models, has_gateway=has_gateway, now_ms=view.now_ms)
    except BadRequest as refusal:
        return await _render(view, _Refusal("choice", str(refusal), form))
    return view.done("/models", view.t(".chosen_now"))


async def set_fallback(view: View, form: SentForm) -> Response:
    """Set the models that answer while a chosen service does not, in the order of the form.

    A refused form is shown again. Raises `ChangedSince` if somebody else has changed the list meanwhile.
    """
    models = [
        # The field `dearer` allows the model to replace a service that costs less.
        ChosenModel(WorkKind.FALLBACK, model, form.is_set(f"dearer{index}"))
        for index in range(model_choices.MAX_FALLBACKS)
        if (model := form.text(f"model{index}"))
    ]
    has_gateway = view.services.models.has_gateway()
    try:
        async with view.host.database.transaction() as tx:
            form.check_unchanged(_fallback_state(await model_services.choices(tx)))
            await model_choices.choose(
                tx, WorkKind.FALLBACK, models, has_gateway=has_gateway, now_ms=view.now_ms
            )
    except ChangedSince:
        # A `BadRequest` as well, but one with a page of its own, which shows both states.
        raise
    except BadRequest as refusal:
        return await _render(view, _Refusal("fallback", str(refusal), form))
    return view.done("/models", view.t(".fallback_set"))


def _work(text: str) -> WorkKind:
    """Return the kind of work that a form's text names. Raises `BadRequest` if it names none."""
    work = next((kind for kind in WORK if kind == text), None)
    if work is None:
        raise BadRequest(f"'{text[:20]}' is no kind of work: {', '.join(WORK)}.")
    return work


def _tokens(text: str) -> int | None:
    """Return the number of tokens in a form's field; None for an empty field.

    Raises `BadRequest` for a text that is no number of at most nine digits.
    """
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadRequest(f"'{text[:20]}' is no number of tokens.")
    return int(text) if text else None


async def _render(view: View, refusal: _Refusal | None = None) -> Response:
    """Return the page; with a `refusal`, the refused form in it has the typed values and the reason."""
    async with view.host.reader.reading() as tx:
        stored_services = {service.name: service for service in await model_services.every(tx)}
        conditions = await reports.conditions(tx, view.services.models)
        stored_choices = await model_services.choices(tx)
        all_groups = await groups.every(tx)
    form = refusal.form if refusal else None
    typed_group = form.text("whose") if form else ""
    is_gone = bool(typed_group) and all(group.folder != typed_group for group in all_groups)
    return view.render(
        "models.html",
        status=422 if refusal else 200,
        refused_at=refusal.place if refusal else "",
        error=refusal.reason if refusal else "",
        typed=typed(form, *NEW_FIELDS, *CHOICE_FIELDS),
        # The service of `.env` has a condition, too, but is not stored: its second value is None.
        services=[(condition, stored_services.get(condition["name"])) for condition in conditions],
        # The first choice leaves the kind empty: then it is the kind of the service's name, such as `ollama`.
        kinds=[("", view.t(".kind_of_name")), *((name, preset.title) for name, preset in PRESETS.items())],
        chosen=[
            *(
                _row("", choice.work, choice.model)  # for all groups
                for choice in stored_choices
                if choice.work is not WorkKind.FALLBACK
            ),
            *(row for group in all_groups for row in _rows_of(group)),
        ],
        fallback=_fallback_rows(stored_choices, form if refusal and refusal.place == "fallback" else None),
        works=[(work.value, view.t(f".work_{work.value}")) for work in WORK],
        # A group that is gone stays chosen: without it the form, sent again, would mean all groups.
        choices=view.choices(all_groups) + ([(typed_group, typed_group)] if is_gone else []),
        # The form sends this back, so that `set_fallback` notices a change by somebody else.
        shown=_fallback_state(stored_choices),
        known=[f"{name}/{service.model}" for name, service in stored_services.items() if service.model],
    )


def _row(folder: str, work: WorkKind, model: str) -> dict[str, str]:
    """Return a chosen model as a row of the page; `folder` is empty for a choice for all groups."""
    return {"group": folder, "work": work.value, "model": model}


def _rows_of(group: Group) -> list[dict[str, str]]:
    """Return the models that a group has chosen as rows: for all its work, then for kinds of work."""
    config = group_settings.of(group)
    for_all_work = [_row(group.folder, WorkKind.ALL, config.model)] if config.model else []
    return for_all_work + [
        _row(group.folder, WorkKind(work), model) for work, model in sorted(config.models.items())
    ]


def _fallback_state(chosen: Sequence[ChosenModel]) -> dict[str, str]:
    """Return the list of fallback models as one text, to notice that somebody else has changed it."""
    fallbacks = [choice for choice in chosen if choice.work is WorkKind.FALLBACK]
    return {
        "fallback": ", ".join(f"{choice.model}{' +' if choice.may_be_dearer else ''}" for choice in fallbacks)
    }


def _with_stored_facts(service: ModelService, before: ModelService | None) -> ModelService:
    """Return a model service from a form with the facts that the form does not have. Pure.

    They are those of `before`, the stored service of the same name, if there is one.
    """
    if before is None:
        return service
    merged = replace(service, first_byte_seconds=before.first_byte_seconds)
    # What a test found out holds for this kind, address and model alone.
    is_same = (before.kind, before.url, before.model) == (service.kind, service.url, service.model)
    return replace(merged, abilities=before.abilities, tested_ms=before.tested_ms) if is_same else merged


class FallbackRow(TypedDict):
    """A row of the form with the fallback models."""

    model: str
    dearer: bool
    """Whether the model may replace a cheaper one."""


def _fallback_rows(chosen: list[ChosenModel], form: SentForm | None) -> list[FallbackRow]:
    """Return the rows of the form with the fallback models: as typed in `form`, or as stored if it is None.

    Stored rows are followed by an empty one for one more model, if there is room.
    """
    if form is not None:
        return [
            {"model": form.raw(f"model{index}"), "dearer": form.is_set(f"dearer{index}")}
            for index in range(model_choices.MAX_FALLBACKS)
        ]
    rows: list[FallbackRow] = [
        {"model": choice.model, "dearer": choice.may_be_dearer}
        for choice in chosen
        if choice.work is WorkKind.FALLBACK
    ]
    rows.append({"model": "", "dearer": False})
    return rows[: model_choices.MAX_FALLBACKS]


PAGE = Page(
    name="models",
    order=75,
    shows={"/models": show},
    changes={
        "/models/services": add,
        "/models/services/{name}/remove": remove,
        "/models/choices": choose,
        "/models/fallback": set_fallback,
    },
    live={"services": ("turn.*", "run.ended")},
)
