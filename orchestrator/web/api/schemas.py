"""The rows and documents of `/api`, described for OpenAPI. Reports make them; tests hold both together.

Nothing is checked against these models while serving: a row is sent as its report made it.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from orchestrator.dashboard.services.reminders import ReminderView
from orchestrator.reports.notices import NoticeView
from orchestrator.reports.notifications import NotificationView
from orchestrator.reports.upcoming import UpcomingView

R = TypeVar("R")
Details = dict[str, Any]


class ApiSchema(BaseModel):
    """Has these fields and no others. Names that end in `_ms` are epoch milliseconds, UTC."""

    model_config = ConfigDict(extra="forbid")


def schema_of(view: type, name: str, **missing: Any) -> type[ApiSchema]:
    """Return the schema of a report's view, a `TypedDict`, under the name that OpenAPI has for it.

    A text in `Annotated` is the description of its field; `missing` are values that clients may
    take for a field that an earlier Andy left out.
    """
    fields: dict[str, Any] = {}
    for field, hint in get_type_hints(view, include_extras=True).items():
        texts = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        kind = get_args(hint)[0] if texts else hint
        fields[field] = (kind, Field(missing.get(field, ...), description=texts[0] if texts else None))
    return create_model(name, __base__=ApiSchema, **fields)


class ListPage(ApiSchema, Generic[R]):
    """One page of a list; `next` is the `cursor` of the page after it, null on the last one."""

    rows: list[R]
    next: int | None


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
    tools: list[ToolCallSchema]
    replies: list[Details]
    cost: Details | None
    log: list[str]
    steps: list[TimelineStepSchema]


class TurnSchema(ApiSchema):
    id: int
    group: str
    kind: str
    state: str
    attempt: int
    run: str | None
    queued_ms: int
    started_ms: int | None
    ended_ms: int | None
    reason: str | None


class ToolCallSchema(ApiSchema):
    """One call of a tool, as its container told it; secrets are taken out."""

    call: str
    parent: str | None = Field(description="The call that started the subagent which made this one.")
    tool: str
    input: str = Field(description="What it was called with: one line, at most 300 characters.")
    attempt: int
    run: str
    started_ms: int
    duration_ms: int | None
    state: str = Field(description="running, ok, failed, or broken_off where its end was not told.")


class TurnDocumentSchema(TurnSchema):
    """A turn with what its agent did in it."""

    tools: list[ToolCallSchema]
    draft: str = Field(description="The text that is being written; it is no answer before the turn ends.")


class RunSchema(ApiSchema):
    number: int
    id: str
    group: str
    runtime: str
    is_isolated: bool
    model: str | None
    started_ms: int
    ended_ms: int | None
    exit: str | None
    exit_detail: str | None
    frames: int
    conversation: str | None
    conversation_reason: str | None


class TaskSchema(ApiSchema):
    """A scheduled task; what it does not have is left out. Times are local, with offset."""

    id: str
    groupFolder: str  # noqa: N815 - as agents see it
    prompt: str
    schedule_type: str
    schedule_value: str
    timezone: str
    dst: str
    context_mode: str
    overlap: str
    catch_up: str
    status: str
    failures: int
    check: str | None = None
    status_reason: str | None = None
    next_run: str | None = None
    last_run: str | None = None
    last_result: str | None = None


class TaskDocumentSchema(TaskSchema):
    """A scheduled task with its newest runs."""

    when: str
    runs: list[Details]


ReminderSchema = schema_of(ReminderView, "ReminderSchema")
NotificationSchema = schema_of(NotificationView, "NotificationSchema")


class ApprovalSchema(ApiSchema):
    id: int
    group: str
    kind: str = Field(description="egress: to reach a place; mcp: to call a tool of an MCP server.")
    subject: str = Field(description="host:port, or server/tool.")
    detail: str = Field(description="What the tool is called with; secrets are taken out.")
    turn: int | None
    state: str = Field(description="waiting, lapsed, once, always, used, or refused.")
    asked_ms: int
    expires_ms: int | None = Field(description="Until when it waits or holds; null for ever.")
    decided_ms: int | None
    decided_by: str | None


class OutboxSchema(ApiSchema):
    id: int
    group: str | None
    chat: str
    turn: int | None
    state: str
    created_ms: int
    attempts: int
    next_attempt_ms: int
    text: str
    error: str | None


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


NoticeSchema = schema_of(NoticeView, "NoticeSchema")


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


UpcomingSchema = schema_of(UpcomingView, "UpcomingSchema", times=1, last_due=None, text="", at=[])


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


class FoundSchema(ApiSchema):
    seq: int
    id: str
    chat: str
    group: str | None
    at_ms: int
    sender: str
    text: str
    excerpt: str


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
