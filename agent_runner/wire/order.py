"""What the host orders: a run (stdin) and the turns in it (stdin, then files in `input/`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_runner.wire.document import Document
from agent_runner.wire.notices import MAX_TOLD, Notice

AgentName = Literal["claude", "offline"]
Egress = Literal["none", "allowlist", "open"]
TurnKind = Literal["chat", "task", "worker", "auto"]
RestoreMode = Literal["fresh", "resume", "resume_plus_delta", "rehydrate"]
"""How a conversation goes on in a new container: not at all, in its session, or from what was kept of it."""
MAX_RESTORE_CHARS = 9_500
"""What a hook of the CLI puts before a model whole; of more, it shows the beginning only."""
MAX_LAST_QUESTION = 100

CLOSE_FILE = "_close"


class Request(Document):
    """One message that asks for something, trigger removed: what an agent without a model reads."""

    sender: str
    text: str


class TurnOrder(Document):
    """One turn: what the agent is asked once. As a file it names its run, so that no other run takes it."""

    run: str
    turn: int
    kind: TurnKind
    prompt: str
    requests: tuple[Request, ...] = ()
    command: Literal["compact"] | None = None
    """What to do to the conversation, instead of a question in it."""
    check: str | None = None
    """A bash script that is run before the agent; its last line may say that there is nothing to do."""
    instructions: str | None = None
    """The whole of what the agent is told of its part, in place of the usual; only in a run of its own."""
    notices: tuple[Notice, ...] = Field(default=(), max_length=MAX_TOLD)
    """What the host keeps for the agent to notice in this turn, if it comes to that."""


class TurnLimits(Document):
    """What one turn may use."""

    turn_seconds: float = Field(default=1800.0, gt=0)
    model_turns: int | None = Field(default=None, gt=0)
    turn_tokens: int | None = Field(default=None, gt=0)
    """How many tokens a model may write before it is told that it was enough. It is not stopped."""
    iterations: int = Field(default=30, gt=0)
    """How often a model may be asked before it is told that it was enough. It is not stopped."""


class RestoredConversation(Document):
    """What the conversation was until now, for whoever is to notice it. All of it is 0 in a new one."""

    turns: int = Field(default=0, ge=0)
    """How often a person has asked something in it."""
    exchanges_kept: int = Field(default=0, ge=0)
    """How many of these are whole in what a new session is told."""
    messages_kept: int = Field(default=0, ge=0)
    summary_chars: int = Field(default=0, ge=0)
    age_seconds: int = Field(default=0, ge=0)
    """How long ago the last of it was."""
    last_question: str = Field(default="", max_length=MAX_LAST_QUESTION)
    context_tokens: int = Field(default=0, ge=0)
    """What it fills of the model's window in the session that is resumed."""
    context_window: int = Field(default=0, ge=0)
    """How large that window is; 0 where that is not known."""


class RestoreOrder(Document):
    """What a new container does about the conversation so far."""

    mode: RestoreMode = "fresh"
    reason: str = ""
    text: str | None = Field(default=None, max_length=MAX_RESTORE_CHARS)
    """Put before the model once, with the first prompt."""
    fallback: str | None = Field(default=None, max_length=MAX_RESTORE_CHARS)
    """Put there in its place when the session to resume turns out to be gone."""
    resume_at: str | None = Field(default=None, max_length=64)
    """The last message of the session that counts, by its uuid: what came after it is dropped."""
    meta: str | None = Field(default=None, max_length=MAX_RESTORE_CHARS)
    """What is put there again when the session was compacted: plan, task, decisions, files."""
    so_far: RestoredConversation = RestoredConversation()


class RunOrder(Document):
    """All a container is told at its start. It carries no secret."""

    run: str
    group: str
    chat_jid: str
    is_main: bool = False
    assistant_name: str = "Andy"
    timezone: str = "UTC"
    agent: AgentName = "offline"
    model: str | None = None
    session_id: str | None = None
    restore: RestoreOrder = RestoreOrder()
    turn: TurnOrder
    limits: TurnLimits = TurnLimits()
    egress: Egress = "none"
    """What is reached outside: nothing, `reachable` through the proxy in HTTPS_PROXY, or the internet."""
    reachable: tuple[str, ...] = ()
    web_search: bool = False
    """Whether the model service may search the web."""
    mcp_servers: tuple[str, ...] = ()
    """Servers of the owner's, by name: each at `/mcp/{name}` of the address that models are asked at."""


class CloseOrder(Document):
    """The content of `input/_close`: the runs of the group that are to end after their turn."""

    runs: tuple[str, ...]
