"""The schemas of `/api` for OpenAPI, made from the views of the reports; tests hold both together.

Nothing is checked against these models while serving: a row is sent as its report made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    NotRequired,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic import BaseModel, ConfigDict, Field, create_model

from orchestrator.reports.turn_work import ToolCallView
from orchestrator.reports.upcoming import UpcomingView

R = TypeVar("R")
PART = "Part"
"""The end of the name of a view that is an open object in OpenAPI: its fields are promised to no client."""
LEFT_OUT_BEFORE: Mapping[type, Mapping[str, Any]] = {
    UpcomingView: {"times": 1, "last_due": None, "text": "", "at": []},
}
"""Values that clients may take for fields that an earlier Andy did not send, by their view."""
_MADE: dict[type, type[ApiSchema]] = {}
"""The one schema of each view: OpenAPI would give two of the same name longer names."""


class RowPage(TypedDict, Generic[R]):
    """One page of a list, as it is sent."""

    rows: Sequence[R]
    next: int | None


class ApiSchema(BaseModel):
    """Has these fields and no others. Names that end in `_ms` are epoch milliseconds, UTC."""

    model_config = ConfigDict(extra="forbid")


class ListPage(ApiSchema, Generic[R]):
    """One page of a list; `next` is the `cursor` of the page after it, null on the last one."""

    rows: list[R]
    next: int | None


def schema_of(view: type) -> type[ApiSchema]:
    """Return the schema of a view, a `TypedDict`: that of `TurnView` is called `TurnSchema`.

    A text in `Annotated` is the description of its field; a field that is `NotRequired` may be null, too.
    """
    if view in _MADE:
        return _MADE[view]
    missing = LEFT_OUT_BEFORE.get(view, {})
    fields: dict[str, Any] = {}
    for field, hint in get_type_hints(view, include_extras=True).items():
        is_optional = get_origin(hint) is NotRequired
        kind = get_args(hint)[0] if is_optional else hint
        default = None if is_optional else missing.get(field, ...)
        kind, text = get_args(kind) if get_origin(kind) is Annotated else (kind, None)
        fields[field] = (_described(kind), Field(default, description=text))
    name = view.__name__.removesuffix("View") + "Schema"
    _MADE[view] = create_model(name, __base__=ApiSchema, __doc__=view.__doc__, **fields)
    return _MADE[view]


def _described(hint: Any) -> Any:
    """Return a type with the schemas of views in place of the views."""
    if is_typeddict(hint):
        return dict[str, Any] if hint.__name__.endswith(PART) else schema_of(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return reduce(or_, map(_described, parts))
    return hint if origin is None else origin[tuple(map(_described, parts))]


Details = dict[str, Any]
ToolCallSchema = schema_of(ToolCallView)


class QuoteSchema(ApiSchema):
    id: str
    sender: str
    text: str


class MessageSchema(ApiSchema):
    seq: int
    id: str
    at_ms: int
    received_ms: int
    sender: str
    is_andy: bool
    text: str
    quote: QuoteSchema | None
    turn: int | None = Field(description="The turn that has it; of what Andy said, the one that said it.")
    state: str = Field(description="queued, running, answered, failed, ignored, or said by Andy.")
    attempt: int | None
    reason: str | None
    place: int | None = Field(description="In the queue, from 1 on.")
    outcome: str = Field(description="What became of it, in words.")
    file: str | None = Field(
        description="The name of the file that Andy sent with it: GET /api/messages/{group}/{id}/file."
    )
    chat: str = Field(description="The address of the chat in which it stands.")
    chat_label: str | None = Field(description="What that chat is called, of a group with several.")


class TimelineMessageSchema(ApiSchema):
    seq: int
    sender: str
    text: str
    sent_ms: int
    received_ms: int
    ignored_reason: str | None


class TimelineStepSchema(ApiSchema):
    at_ms: int | None
    step: str
    text: str


class TimelineDocumentSchema(ApiSchema):
    """All that befell one message."""

    id: str
    group: str
    chat: str
    message: TimelineMessageSchema | None
    turn: Details | None
    attempts: list[Details]
    work: list[Details]
    tools: list[ToolCallSchema]  # type: ignore[valid-type]
    replies: list[Details]
    cost: Details | None
    log: list[str]
    steps: list[TimelineStepSchema]


class UsageCountsSchema(ApiSchema):
    requests: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    unpriced: int = Field(description="Answers of models without a known price.")
    assumed: int = Field(description="Answers that count at the dearest price of their model's family.")
    cut: int = Field(description="Answers that broke off.")
    searches: int = Field(description="Searches of the web.")
    cost_usd: float | None


class UsageSchema(UsageCountsSchema):
    """The field that is asked for with `by` is there, the others are not."""

    day: str | None = None
    group: str | None = None
    task: str | None = None
    kind: str | None = None
    model: str | None = None
    agent: str | None = None


class BudgetSchema(ApiSchema):
    id: int
    group: str | None
    background: bool
    period: str
    unit: str
    amount: float
    used: float
    percent: int
    unpriced: int
    ends: str


class UsageDocumentSchema(ApiSchema):
    by: str
    group: str | None
    rows: list[UsageSchema]
    total: UsageCountsSchema
    prices_as_of: str
    budgets: list[BudgetSchema]


class AuditSchema(ApiSchema):
    id: int
    at_ms: int
    kind: str
    group: str | None
    run: str | None
    turn: int | None
    detail: Details
    hash: str


class AuditVerdictSchema(ApiSchema):
    rows: int
    head: str
    fault: str | None
    ok: bool


class CommandSchema(ApiSchema):
    number: int
    at_ms: int
    group: str
    request: str
    type: str
    ok: bool
    code: str
    text: str


class GroupSchema(ApiSchema):
    folder: str
    name: str
    jid: str = Field(description="The chat that is told what nobody asked for in another.")
    chats: list[str] = Field(description="All its chats, that one first.")
    trigger: str | None
    requires_trigger: bool
    is_main: bool
    config: Details


class GroupChangeSchema(ApiSchema):
    number: int
    group: str
    part: str = Field(description="profile (its name and what calls Andy), settings or memory.")
    at_ms: int
    by: str
    added: int = Field(description="Lines that are new.")
    removed: int = Field(description="Lines that are gone.")
    undoes: int | None


class AccessRequestSchema(ApiSchema):
    """A chat without a group that called; what its people chose is as they wrote it, cut."""

    number: int
    state: str = Field(description="waiting, registered, ignored or blocked.")
    jid: str
    name: str
    channel: str
    is_direct: bool = Field(description="Whether one person writes there to an account of Andy's own.")
    people: int | None = Field(description="How many are in it, where the messenger says so.")
    sender: str
    sender_name: str
    is_owner: bool
    words: str = Field(description="The words of its call; empty once it is decided.")
    asked_ms: int
    notified_ms: int | None = Field(description="When main was asked about it; null of one only listed.")
    decided_ms: int | None
    decided_by: str | None


class ChatSchema(ApiSchema):
    jid: str
    name: str
    channel: str | None
    is_group: bool
    last_message_ms: int | None
    group: str | None
    request: AccessRequestSchema | None = Field(description="What is asked of one that called.")


class NodeSchema(ApiSchema):
    """A machine of the swarm; there is none where agents run on this machine."""

    name: str
    address: str
    state: str = Field(description="`ready` or `down`, with `drain` or `pause` where it takes nothing new.")
    labels: list[str]
    slots: int | None = Field(description="How many containers it may have; null for no limit of its own.")
    groups: list[str] = Field(description="Those whose containers run there.")
    problem: str | None = Field(description="Why it takes none, with the fix.")


class LoopSchema(ApiSchema):
    """The loop of a group; of one that is off, only that."""

    group: str
    status: str
    running: str | None = None
    waiting: list[str] | None = None
    next_wake_ms: int | None = None
    in_ms: int | None = None
    set_by: str | None = None
    reason: str | None = None
    raw: str | None = None
    trace: list[str] | None = None
    held: str | None = None
    pause_ms: int | None = None
    idle_in_a_row: int | None = None
    last_start_ms: int | None = None
    last_end_ms: int | None = None


class LogDocumentSchema(ApiSchema):
    """The last lines of a log; `run` is the one whose log it is, null for the host's own."""

    group: str | None
    run: str | None
    lines: list[str]


class PersonNoteSchema(ApiSchema):
    """Something that was noted of people."""

    id: str
    text: str
    about: list[str] = Field(description="Names of those whom it concerns.")
    said_by: list[str] = Field(description="Names of those who asked when it was noted.")
    at_ms: int


class EntrySchema(ApiSchema):
    """A reminder or a task that somebody asked for."""

    id: str
    text: str


class MentionSchema(ApiSchema):
    """Something else that is remembered and has a person's name."""

    id: str
    kind: str
    text: str


class KnownPersonSchema(ApiSchema):
    """All that is stored of one person of a group."""

    address: str
    aliases: list[str]
    name: str
    role: str
    since_ms: int | None
    messages: int
    notes: list[PersonNoteSchema]
    mentions: list[MentionSchema]
    reminders: list[EntrySchema]
    tasks: list[EntrySchema]


class ContextDocumentSchema(ApiSchema):
    """The stored context of a group's conversation."""

    group: str
    context: Details
    workflow: Details
    mended: list[str] = Field(description="Files that could not be read, as they were put aside.")
    snapshots: list[Details]
    notes: list[PersonNoteSchema]
