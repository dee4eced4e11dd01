"""The form of a group's settings, made from their declaration: each field with its kind, value and error.

A setting that is added to `GroupConfig` is in the form automatically; its texts are `groups.set_NAME`,
`groups.set_NAME_hint` and `groups.wrong_NAME`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.model_services import ModelService
from orchestrator.domain.values import Group
from orchestrator.domain.web_search import SearchService
from orchestrator.groups import model_choices, name_and_trigger, settings
from orchestrator.groups.name_and_trigger import GroupProfile, ProfileRefused
from orchestrator.groups.settings import GroupConfig
from orchestrator.web.console.form_tokens import SentForm

MINUTE_MS = 60_000
MAX_MINUTES = 1e9
LISTED, CLOSED = "listed", "none"
WORK: tuple[str, ...] = ("tasks", "worker", "summaries")
"""The kinds of work that have a model of their own."""
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "model": ("model",),
    "reach": ("egress", "ask", "web_search", "mounts"),
    "voice": ("speech",),
}
"""The settings that are shown at once. All others are behind "More settings"."""
Kind = Literal[
    "check", "choice", "number", "text", "lines", "checks", "egress", "ask", "mounts", "models", "skills"
]
SPECIAL: Mapping[str, Kind] = {name: name for name in ("egress", "ask", "mounts", "models", "skills")}
"""Settings whose fields need a special form."""


ELSEWHERE = ("people", "roles")
"""Settings that have forms of their own; this form does not change them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingField:
    """A setting as a field of the form."""

    name: str
    kind: Kind
    options: tuple[str, ...] = ()
    """The allowed values, if they are few."""
    least: float | None = None
    """The smallest allowed number, if there is one."""
    most: float | None = None
    """The largest allowed number, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentSettings:
    """The values of a form, and for each unusable one the reason, in the language of the page."""

    profile: GroupProfile
    fields: dict[str, Any]
    errors: dict[str, str]


@cache
def fields() -> Mapping[str, SettingField]:
    """Return the fields of the form of a group's settings, by the name of the setting. Pure.

    The settings `ELSEWHERE` have forms of their own. The fields are in the order in which the settings are
    declared, and cached: Pydantic takes 25 ms to make the schema, and a page needs it a dozen times.
    """
    schema = GroupConfig.model_json_schema()["properties"]
    infos = GroupConfig.model_fields.items()
    all_fields = {name: _field(name, info, schema[name]) for name, info in infos if name not in ELSEWHERE}
    return MappingProxyType(all_fields)


def others() -> list[str]:
    """Return the names of the settings that the form shows behind "More settings". Pure."""
    named = {name for section in SECTIONS.values() for name in section}
    return [name for name in fields() if name not in named]


def _field(name: str, info: FieldInfo, schema: Mapping[str, Any]) -> SettingField:
    """Return the form's field for a setting, from the setting's declaration and its JSON schema.

    Its value and its error are not in it: the page adds these.
    """
    if name in SPECIAL:
        return SettingField(name=name, kind=SPECIAL[name])
    # Pydantic writes `float | None` as `anyOf`, whose first entry has the bounds. No setting has an upper
    # bound alone.
    bounds: Mapping[str, float] = schema if "minimum" in schema else schema.get("anyOf", [{}])[0]
    # The form shows `timeout_ms` in minutes.
    scale = MINUTE_MS if name == "timeout_ms" else 1
    return SettingField(
        name=name,
        kind=_kind(info.annotation),
        options=_options(info.annotation),
        least=bounds["minimum"] / scale if "minimum" in bounds else None,
        most=bounds["maximum"] / scale if "maximum" in bounds else None,
    )


def _kind(annotation: Any) -> Kind:
    """Return the kind of form field for a setting whose type is `annotation`.

    A tuple is a list of choices or of lines, whatever the type of its items.
    """
    types = _possible_types(annotation)
    if bool in types:
        return "check"
    if _options(annotation):
        return "checks" if tuple in types else "choice"
    if int in types or float in types:
        return "number"
    return "lines" if tuple in types else "text"


def _possible_types(annotation: Any) -> set[Any]:
    """Return the types that a value of the type `annotation` may have, without bounds and parameters. Pure.

    For `Annotated[float, …] | None`, these are `float` and `NoneType`.
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return _possible_types(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return {member for part in get_args(annotation) for member in _possible_types(part)}
    return {origin or annotation}


def _options(annotation: Any) -> tuple[str, ...]:
    """Return the values of `SearchService` or of the first `Literal` in a type; empty without one. Pure."""
    if annotation is SearchService:
        return tuple(service.value for service in SearchService)
    if get_origin(annotation) is Literal:
        return tuple(str(value) for value in get_args(annotation))
    for part in get_args(annotation):
        options = _options(part)
        if options:
            return options
    return ()


# What is shown


def stored_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's stored settings as the values of the form's fields, by the fields' names. Pure.

    A setting that is not stored has an empty value: a text, a list or a table; but `egress` is then closed,
    and all skills are allowed.
    Some settings have other values in the form, or several fields: the timeout is in minutes, and `egress` is
    a choice beside a field with the listed hosts.
    """
    values = {name: config.get(name, "") for name in fields()}
    egress = config.get("egress", CLOSED)
    rules = config.get("ask", [])
    timeout = config.get("timeout_ms")
    return {
        **values,
        "timeout_ms": "" if timeout is None else f"{timeout / MINUTE_MS:g}",
        "cpus": "" if "cpus" not in config else f"{config['cpus']:g}",
        "egress": LISTED if isinstance(egress, dict) else egress,
        "egress_hosts": "\n".join(egress["allowlist"]) if isinstance(egress, dict) else "",
        "ask_egress": settings.EGRESS_RULE in rules,
        "ask": "\n".join(rule for rule in rules if rule != settings.EGRESS_RULE),
        "skills_all": "skills" not in config,
        "skills": config.get("skills", []),
        "mounts": [{"name": "", "writable": False, **mount} for mount in config.get("mounts", [])],
        "models": config.get("models", {}),
        "model_features": config.get("model_features", []),
    }


def typed_values(form: SentForm) -> dict[str, Any]:
    """Return the values that were typed into a form, to show the form again. Pure.

    They are in the shape in which `stored_values` has those of stored settings.
    """
    return {
        **{name: form.raw(name) for name in fields()},
        "speech": form.is_set("speech"),
        "egress_hosts": form.raw("egress_hosts"),
        "ask_egress": form.is_set("ask_egress"),
        "skills_all": form.is_set("skills_all"),
        "skills": form.all("skills"),
        "mounts": [{"name": "", **mount} for mount in _read_mounts(form)],
        "models": _read_models(form, "models"),
        "model_features": form.all("model_features"),
    }


def state(group: Group, label: Callable[[str], str]) -> dict[str, str]:
    """Return a group's profile and settings as texts by their labels, to notice a change by somebody else.

    `label(key)` returns the label that the page shows for a setting.
    """
    config = settings.of(group).to_fields()
    profile = {"name": group.name, "trigger": group.trigger or "", "every": not group.requires_trigger}
    values = {**profile, **{name: config.get(name, "") for name in fields()}}
    return {
        label(f"set_{name}"): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
    }


# What is sent


def read(
    form: SentForm,
    group: Group,
    services: Sequence[ModelService],
    *,
    has_gateway: bool,
    explain: Callable[[str, str], str],
) -> SentSettings:
    """Return the profile and the settings in a form, and the reason for each field that cannot be used.

    `has_gateway` says whether the model service of `.env` is a gateway, whose models may have any names.
    `explain(field, reason)` returns the text that people read about an unusable value.
    """
    profile = GroupProfile(name=form.raw("name"), trigger=form.raw("trigger"))
    # Main answers every message, so its form has no such field.
    if not group.is_main:
        profile.requires_trigger = not form.is_set("every")
    sent = {name: READERS[field.kind](form, name) for name, field in fields().items()}
    values = {name: value for name, value in sent.items() if value is not None}
    # The form has no fields for these settings, which are checked with the others and not saved by it.
    values |= {name: value for name, value in group.container_config.items() if name in ELSEWHERE}
    mistakes = [
        *_profile_mistakes(group, profile),
        *_model_mistakes(form, services, has_gateway=has_gateway),
    ]
    try:
        values = GroupConfig.model_validate(values).to_fields()
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        mistakes += [
            (str(problem["loc"][0]), problem["msg"].removeprefix("Value error, ")) for problem in problems
        ]
    return SentSettings(
        profile=profile,
        fields=values,
        # Reversed, so that the first of several reasons for a field is the one that stays.
        errors={name: explain(name, reason) for name, reason in reversed(mistakes)},
    )


def _profile_mistakes(group: Group, profile: GroupProfile) -> list[tuple[str, str]]:
    """Return pairs of a field and a reason for the fields of a profile that cannot be used for this group."""
    mistakes = []
    # One at a time: a wrong name would otherwise hide a wrong trigger.
    for part in (GroupProfile(name=profile.name), GroupProfile(trigger=profile.trigger)):
        try:
            name_and_trigger.with_profile(group, part)
        except ProfileRefused as refused:
            mistakes.append((refused.field, str(refused)))
    return mistakes


def _model_mistakes(
    form: SentForm, services: Sequence[ModelService], *, has_gateway: bool
) -> list[tuple[str, str]]:
    """Return pairs of a field and a reason for the models in a form that cannot be used.

    `has_gateway` says whether the model service of `.env` is a gateway, whose models may have any names.
    """
    mistakes = []
    models = [("model", form.text("model")), *(("models", form.text(f"models_{work}")) for work in WORK)]
    for name, model in models:
        try:
            if model:
                model_choices.check_choice(model, services, has_gateway=has_gateway)
        except BadRequest as refused:
            mistakes.append((name, str(refused)))
    return mistakes


def _read_number(form: SentForm, name: str) -> float | str | None:
    """Return the number in a form's field, or None for an empty field.

    An invalid number stays text, so that the validation names its field. Minutes become milliseconds.
    """
    text = form.text(name)
    try:
        number = float(text)
    except ValueError:
        return text or None
    # Infinity cannot be rounded. The validation refuses it, and huge numbers, later.
    if name == "timeout_ms" and abs(number) < MAX_MINUTES:
        number = float(round(number * MINUTE_MS))
    return int(number) if number.is_integer() else number


# These functions return the value of a setting in a form as `GroupConfig` takes it, or None if it is not set.


def _read_egress(form: SentForm, name: str) -> dict[str, list[str]] | str | None:
    """Return the network setting in a form: a name, an `allowlist` of hosts, or None for the default."""
    if form.text(name) == LISTED:
        return {"allowlist": _read_lines(form, "egress_hosts")}
    return form.text(name) or None


def _read_ask(form: SentForm, name: str) -> list[str] | None:
    """Return the rules in a form for actions that need approval, or None for the default."""
    rules = [settings.EGRESS_RULE] if form.is_set("ask_egress") else []
    return [*rules, *_read_lines(form, name)] or None


def _read_skills(form: SentForm, name: str) -> list[str] | None:
    """Return the names of the ticked skills in a form; None stands for all skills."""
    return None if form.is_set("skills_all") else form.all(name)


def _read_mounts(form: SentForm, name: str = "mounts") -> list[dict[str, Any]]:
    """Return the folders to mount in a form, each with `path`, `writable`, and `name` if it has one."""
    mounts = []
    # One more than is allowed, so that the validation can refuse it.
    for index in range(settings.MAX_MOUNTS + 1):
        path, mount_name = form.text(f"{name}_path{index}"), form.text(f"{name}_name{index}")
        if path:
            optional = {"name": mount_name} if mount_name else {}
            mounts.append({"path": path, **optional, "writable": form.is_set(f"{name}_writable{index}")})
    return mounts


def _read_models(form: SentForm, name: str) -> dict[str, str]:
    """Return the chosen model in a form for each kind of work that has one, by the kind of work."""
    return {work: model for work in WORK if (model := form.text(f"{name}_{work}"))}


def _read_lines(form: SentForm, name: str) -> list[str]:
    """Return the lines of a form's field, without empty lines and without spaces around them."""
    return [line.strip() for line in form.raw(name).split("\n") if line.strip()]


READERS: Mapping[Kind, Callable[[SentForm, str], object]] = {
    "check": lambda form, name: form.is_set(name) or None,
    "checks": lambda form, name: form.all(name) or None,
    "choice": lambda form, name: form.text(name) or None,
    "text": lambda form, name: form.text(name) or None,
    "lines": lambda form, name: _read_lines(form, name) or None,
    "number": _read_number,
    "egress": _read_egress,
    "ask": _read_ask,
    "mounts": lambda form, name: _read_mounts(form, name) or None,
    "models": lambda form, name: _read_models(form, name) or None,
    "skills": _read_skills,
}
"""A kind of field → the function that reads its value; None means that the host's setting counts."""
