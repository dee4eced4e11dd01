"""Validate and read the settings of one group, stored as `container_config`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import structlog
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import ErrorDetails

from orchestrator.domain.errors import BadRequest
from orchestrator.domain.network_targets import NetworkTarget, parse_target
from orchestrator.domain.values import Group, Role, TurnKind
from orchestrator.domain.web_search import SearchService, service_name_of
from orchestrator.groups import roles
from orchestrator.groups.roles import (
    EVERYBODY,
    MAX_PEOPLE,
    ChangeableRole,
    Permission,
    RoleRules,
    rights_of,
)
from orchestrator.home.setting_sources import known_zone
from orchestrator.home.settings import Settings

log = structlog.get_logger(__name__)

MAX_MOUNTS = 20
MAX_TARGETS = 200
MAX_RULES = 50
EGRESS_RULE, MCP_RULE = "egress", "mcp:"
_RULE = re.compile(r"egress|mcp:\*|mcp:[a-z][a-z0-9-]{0,31}(?:/[A-Za-z0-9_.-]{1,128})?")
EVERY_SERVER = "mcp:*"
ModelFeature = Literal["compaction", "fast_mode", "inference_geo"]
"""Features of the model service at a price of their own, by the names that the owner allows them by."""


class ConfigRefused(BadRequest):
    """The configuration of a group cannot be used."""

    code = "bad_config"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MountRequest(_Strict):
    """A directory or file of the host that the group is to see at `/workspace/extra/{name}`."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Default: the last part of the path."""
    writable: StrictBool = False


def _valid_rule(text: str) -> str:
    """Return a text unchanged if it is a rule about what the owner is asked (`ask`).

    Raises `ValueError` for any other text, as validators of pydantic do.
    """
    if not _RULE.fullmatch(text):
        raise ValueError(
            "write egress, mcp:SERVER (all its tools), mcp:SERVER/TOOL or mcp:*;"
            " the name of a tool is whole, of 1 to 128 letters, digits, '_', '-' and '.'"
        )
    return text


def _checked_with_egress(rules: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """Check the rules of `ask_owner` against the setting `egress`, and return them as they are.

    Raises `ValueError` if the owner is to be asked about addresses, although `egress` allows all of them.
    `info` has the settings that were validated before.
    """
    if EGRESS_RULE in rules and info.data.get("egress") == "open":
        raise ValueError("egress is open, so there is nothing to ask about: give a list, or none")
    return rules


def _normalised_target(text: str) -> str:
    """Return a target of the network as `host:port`, so that each has only one spelling.

    Raises `ValueError` if the text is no target.
    """
    return str(parse_target(text))


class EgressAllowlist(_Strict):
    """The only outside targets that a group reaches, each as `host:port`."""

    allowlist: Annotated[
        tuple[Annotated[str, Field(max_length=300), AfterValidator(_normalised_target)], ...],
        Field(min_length=1, max_length=MAX_TARGETS),
    ]


class GroupConfig(_Strict):
    """The settings of one group. Unset ones follow the host's settings."""

    mounts: Annotated[tuple[MountRequest, ...], Field(max_length=MAX_MOUNTS)] = ()
    timeout_ms: Annotated[int, Field(ge=10_000, le=86_400_000)] | None = None
    """Milliseconds that a turn may take."""
    memory_mb: Annotated[int, Field(ge=256, le=1_048_576)] | None = None
    cpus: Annotated[float, Field(ge=0.1, le=512)] | None = None
    agent: Literal["auto", "claude", "offline"] | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """`SERVICE/MODEL`, such as `local/qwen3`, or a model of the service of `.env`."""
    models: dict[
        Literal["tasks", "worker", "summaries"], Annotated[str, Field(min_length=1, max_length=200)]
    ] = Field(default_factory=dict)
    """The model for a kind of its work, where that is not `model`."""
    timezone: Annotated[str, Field(max_length=64), AfterValidator(known_zone)] | None = None
    """The zone of its prompts, reminders and schedules."""
    egress: Literal["none", "open"] | EgressAllowlist = "none"
    """Places that it may reach outside: none, a list through the proxy, or all of the internet."""

    web_search: Annotated[SearchService, BeforeValidator(service_name_of)] | None = None
    """The service that searches the web for it: `anthropic` (its model's own), `searxng`, `brave` or `off`.
    Words of the chat reach a search engine then.
    """

    model_features: Annotated[tuple[ModelFeature, ...], Field(max_length=10)] = ()
    """Paid abilities of the model service that its agent may use: `compaction` (it sums up a long
    conversation), `fast_mode`, `inference_geo` (where it computes). Budgets count each at its price.
    """

    speech: StrictBool = False
    """Whether its replies are read aloud too, by the program of `ANDY_SPEECH_COMMAND`."""

    node_label: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,63}=[A-Za-z0-9_.-]{1,63}$")] | None = None
    """`NAME=VALUE`: on a swarm, its containers run only on nodes with this label."""

    skills: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=50)] | None = None
    """The names of the skills that its agent may use; None: all of them."""

    ask: Annotated[
        tuple[Annotated[str, Field(max_length=150), AfterValidator(_valid_rule)], ...],
        Field(max_length=MAX_RULES),
        AfterValidator(_checked_with_egress),
    ] = ()
    """Actions that need the owner's approval: `egress` (a place that is not listed),
    `mcp:SERVER` (each call of its tools), `mcp:SERVER/TOOL`, or `mcp:*` (each call of any server's).
    """

    people: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=200)], Role], Field(max_length=MAX_PEOPLE)
    ] = Field(default_factory=dict)
    """The roles of people by their messenger's address, such as `491701234567@s.whatsapp.net`: owner, member
    or guest. `*` are all others.
    """
    roles: dict[ChangeableRole, RoleRules] = Field(default_factory=dict)
    """The changes to the rules of members and guests: call, network, mcp, memory, schedule and
    history (true or false), spend (percent of each budget).
    """

    @property
    def asks_egress(self) -> bool:
        """Return whether the owner is asked about targets outside of the list."""
        return EGRESS_RULE in self.ask

    def asks_mcp(self, server: str, tool: str | None = None) -> bool:
        """Return whether the owner is asked before a tool of a server is called.

        Without a `tool`, return whether there may be a tool of the server before which they are asked.
        """
        if EVERY_SERVER in self.ask:
            return True
        rule = f"{MCP_RULE}{server}"
        if tool is None:
            return any(own_rule == rule or own_rule.startswith(f"{rule}/") for own_rule in self.ask)
        return rule in self.ask or f"{rule}/{tool}" in self.ask

    @property
    def targets(self) -> frozenset[NetworkTarget]:
        """The hosts and ports on the allowlist; empty when there is no list."""
        listed = self.egress.allowlist if isinstance(self.egress, EgressAllowlist) else ()
        return frozenset(parse_target(text) for text in listed)

    def to_fields(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, in the form in which they are stored."""
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)


def text_of(fields: Mapping[str, Any]) -> str:
    """Return settings as the JSON text that people read and change. Pure."""
    return json.dumps(fields, ensure_ascii=False, indent=2, sort_keys=True)


def checked(fields: Mapping[str, Any]) -> GroupConfig:
    """Return the settings of a group that the owner wrote, after validating them.

    Raises `ConfigRefused`, which names the keys and the fix.
    """
    try:
        return GroupConfig.model_validate(fields)
    except ValidationError as error:
        raise ConfigRefused(_explained(error)) from error


def of(group: Group) -> GroupConfig:
    """Return a group's settings. If the stored ones cannot be parsed, return settings that allow little."""
    return parsed(group.container_config, group.folder)


def to_change(group: Group) -> GroupConfig:
    """Return a group's settings, to be stored again with a change, such as one role of `people`.

    Raises `ConfigRefused`, with the fix, if the stored ones cannot be parsed. For such settings, `of` returns
    others that allow little: to store those would lose what the owner wrote.
    """
    try:
        return GroupConfig.model_validate(_without_zones(group.container_config))
    except ValidationError as error:
        removal = json.dumps(dict.fromkeys(str(part["loc"][0]) for part in error.errors() if part["loc"]))
        raise ConfigRefused(
            f"The settings of '{group.folder}' cannot be read: {_explained(error)} Set each of these keys, or"
            f" remove it with null: andy groups config {group.folder} --set {shlex.quote(removal)}"
        ) from error


def narrowed(group: Group, role: Role) -> Group:
    """Return a group with the settings that apply to a question of a person with this role.

    They allow no more than the rights of the role, and the group is main only if the role may command.
    """
    config = of(group)
    rights = rights_of(role, config)
    if not roles.is_restricted(rights, group):
        return group
    return replace(
        group,
        is_main=group.is_main and Permission.COMMAND in rights.may,
        container_config=roles.narrowed(config, rights).to_fields(),
    )


def parsed(fields: Mapping[str, Any], folder: str) -> GroupConfig:
    """Return the settings of the group `folder` from stored fields.

    If the fields cannot be parsed, log that and return settings that allow little.
    """
    try:
        return GroupConfig.model_validate(_without_zones(fields))
    except ValidationError as error:
        log.warning("group.config_unreadable", group=folder, reason=_explained(error))
        return GroupConfig(
            # The defaults would allow these, also where the owner had forbidden them.
            web_search=SearchService.OFF,
            ask=(EVERY_SERVER,),
            people={EVERYBODY: Role.GUEST},
        )


def search_service(config: GroupConfig, settings: Settings) -> SearchService:
    """Return the service that searches the web for a group's agent: its own choice, else the host's."""
    return settings.andy_web_search if config.web_search is None else config.web_search


def model_of(group: Group, kind: str, *, settings: Settings) -> str | None:
    """Return the model that is set for a group's turns of a kind; None lets the agent choose.

    For turns of workers, the host's model for workers counts before all others. Then the group's model counts
    before the host's.
    """
    workers = settings.agents_worker_model if kind == TurnKind.WORKER else ""
    return workers or of(group).model or settings.andy_model


def zone_of(group: Group, *, default: ZoneInfo) -> ZoneInfo:
    """Return the time zone that a group's settings name, or `default` if they name none."""
    config = of(group)
    return ZoneInfo(config.timezone) if config.timezone else default


def merged(group: Group, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's stored settings after `changes`, in which None removes a key.

    Raises `ConfigRefused` if a key is not known or a value cannot be used.
    """
    fields = {**_without_zones(group.container_config), **changes}
    set_fields = {key: value for key, value in fields.items() if value is not None}
    # A key that is removed has to be known or stored: a misspelt one would look as if it were gone. It is put
    # back with None, so that `checked` refuses it.
    unknown = changes.keys() - GroupConfig.model_fields.keys() - group.container_config.keys()
    return checked({**set_fields, **dict.fromkeys(unknown)}).to_fields()


def _without_zones(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return stored fields without the allowed IPv6 addresses that have a zone, such as `[fe80::1%eth0]:443`.

    Earlier versions stored these, though no group ever reached one. If nothing else is allowed, `egress` is
    `none`.
    """
    egress = fields.get("egress")
    if not isinstance(egress, dict) or not isinstance(targets := egress.get("allowlist"), list | tuple):
        return fields
    remaining = [target for target in targets if "%" not in str(target)]
    if len(remaining) == len(targets):
        return fields
    return {**fields, "egress": {**egress, "allowlist": remaining} if remaining else "none"}


def _explained(error: ValidationError) -> str:
    """Return sentences for the owner about what is wrong with a group's settings: one for each wrong key."""
    deepest: dict[tuple[str | int, ...], ErrorDetails] = {}
    for detail in error.errors(include_url=False, include_context=False):
        key = detail["loc"][:1]
        # For a value of several possible types, the error at the deepest path is the most useful.
        deepest[key] = max(deepest.get(key, detail), detail, key=lambda each: len(each["loc"]))
    sentences: list[str] = []
    known: dict[str, None] = {}
    for detail in deepest.values():
        location, message = detail["loc"], detail["msg"]
        if location[:1] == ("egress",):
            # The second part is no key, but the type of the value that was tried.
            if len(location) == 2:
                message += ', or {"allowlist": ["example.com:443"]}'
            location = (*location[:1], *location[2:])
        place = ".".join(str(part) for part in location)
        if detail["type"] == "extra_forbidden":
            sentences.append(f"'{place}' is no key of a group's configuration.")
            # The same keys are listed once, at the end.
            known[f"Known: {', '.join(_known_keys(detail['loc']))}."] = None
        else:
            sentences.append(f"{place}: {message} (it is {detail['input']!r}).")
    return " ".join([*sentences, *known])


def _known_keys(location: Sequence[str | int]) -> list[str]:
    """Return the keys that may be in the same object as the key at a location, as in `mounts`, 0, `path`."""
    model: type[BaseModel] = GroupConfig
    # The last part is the unknown key itself; nothing comes before a key of the configuration itself.
    match location[:-1]:
        case ("mounts", *_):
            model = MountRequest
        case ("egress", *_):
            model = EgressAllowlist
        case ("roles", *_):
            model = RoleRules
    return sorted(model.model_fields)
