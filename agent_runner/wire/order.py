"""Models the orders of the host: a run (stdin) and the turns in it (stdin, then files in `input/`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_runner.wire.document import Document
from agent_runner.wire.notices import MAX_DELIVERED, Notice

AgentName = Literal["claude", "offline"]
Egress = Literal["none", "allowlist", "open"]
TurnKind = Literal["chat", "task", "worker", "auto"]
RestoreMode = Literal["fresh", "resume", "resume_plus_delta", "rehydrate"]
"""The way in which a new container continues the conversation: anew, in its session, or from a summary."""
MAX_RESTORE_CHARS = 9_500
"""The longest text that a hook of the CLI passes to the model whole; it cuts longer ones off."""
MAX_LAST_QUESTION = 100
"""Most characters of the last question in an order."""

CLOSE_FILE = "_close"
ECHO = "Say this in the chat, word for word: "
"""Begins the prompt of a scheduled task that makes any agent repeat a sentence: a repeating reminder."""


class Request(Document):
    """One message with a request, without the trigger: the input of an agent without a model."""

    sender: str
    text: str
    person: str = ""
    """A short name of the sender, the same in all of their messages; people may share a `sender`."""
    is_owner: bool = False
    quoted: str = ""
    """The text of the message that it replies to."""
    files: Literal["none", "read", "write"] = "write"
    """The sender's access to the group's files; other changes are gone after the turn."""


class TurnLimits(Document):
    """The limits of one turn."""

    turn_seconds: float = Field(default=1800.0, gt=0)
    model_turns: int | None = Field(default=None, gt=0)
    turn_tokens: int | None = Field(default=None, gt=0)
    """The tokens that a model may write in one turn before it is asked to finish. It is not stopped."""
    output_tokens: int | None = Field(default=None, gt=0)
    """The most tokens that one call of the model writes; None leaves it to the model's program."""
    iterations: int = Field(default=30, gt=0)
    """Calls of the model before it is asked to finish. It is not stopped."""


class RestoredConversation(Document):
    """Figures about the conversation so far, for notices. A new one has zeros."""

    turns: int = Field(default=0, ge=0)
    """The number of turns so far."""
    exchanges_kept: int = Field(default=0, ge=0)
    """Questions with their answers that the text for a new session contains in full."""
    messages_kept: int = Field(default=0, ge=0)
    summary_chars: int = Field(default=0, ge=0)
    age_seconds: int = Field(default=0, ge=0)
    """The age of the last message."""
    last_question: str = Field(default="", max_length=MAX_LAST_QUESTION)
    context_tokens: int = Field(default=0, ge=0)
    """Tokens of the model's context window that the resumed session fills."""
    context_window: int = Field(default=0, ge=0)
    """The size of that window in tokens, 0 where it is unknown."""


class RestoreOrder(Document):
    """The order to a new container to restore the conversation so far."""

    mode: RestoreMode = "fresh"
    reason: str = ""
    text: str | None = Field(default=None, max_length=MAX_RESTORE_CHARS)
    """The text that the model gets once, before the first prompt."""
    fallback: str | None = Field(default=None, max_length=MAX_RESTORE_CHARS)
    """The text that it gets instead if the session to resume no longer exists."""
    resume_at: str | None = Field(default=None, max_length=64)
    """The uuid of the last message of the session that counts: later ones are dropped."""
    meta: str | None = Field(default=None, max_length=MAX_RESTORE_CHARS)
    """The text that it gets again after each compaction: plan, task, decisions, files."""
    so_far: RestoredConversation = RestoredConversation()


class RunTerms(Document):
    """The terms of a run, which apply to all its turns. They contain no secret."""

    run: str
    group: str
    chat_jid: str
    is_main: bool = False
    assistant_name: str = "Andy"
    timezone: str = "UTC"
    agent: AgentName = "offline"
    model: str | None = None
    is_plain_service: bool = False
    """Whether its model service has only the features common to services of the Messages API."""
    window: int | None = Field(default=None, gt=0)
    """Tokens that its model takes; None leaves it to the model's program."""
    session_id: str | None = None
    restore: RestoreOrder = RestoreOrder()
    limits: TurnLimits = TurnLimits()
    egress: Egress = "none"
    """Hosts that the container may reach: none, those in `reachable` through the
    proxy in HTTPS_PROXY, or all.
    """
    reachable: tuple[str, ...] = ()
    asks_egress: bool = False
    """Whether the owner is asked about targets that are not in `reachable`."""
    web_search: bool = False
    """Whether the model service may search the web."""
    search_tool: bool = False
    """Whether the host searches the web for the agent, by the tool `web_search`."""
    progress: bool = False
    """Whether the host accepts the frames about a turn's progress: `tool_start` and so on."""
    mcp_servers: tuple[str, ...] = ()
    """The names of the owner's MCP servers, each served at `/mcp/{name}` of the model proxy's address."""
    mcp_programs: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The command lines of those that run in the container, by name; each is in `mcp/{name}`, read-only."""


class TurnOrder(Document):
    """One turn of the agent. A turn file names the run it is for, so that no other run takes it."""

    run: str
    turn: int
    kind: TurnKind
    prompt: str
    requests: tuple[Request, ...] = ()
    command: Literal["compact"] | None = None
    """A command about the conversation itself, in place of a prompt."""
    check: str | None = None
    """A bash script that runs before the agent; its last line may report that there is nothing to do."""
    instructions: str | None = None
    """A system prompt in place of the usual one; only in an isolated run."""
    notices: tuple[Notice, ...] = Field(default=(), max_length=MAX_DELIVERED)
    """The notices of the host that may be injected in this turn."""
    terms: RunTerms | None = None
    """The terms from now on; only in the first turn of a run that was started ahead."""


class RunOrder(RunTerms):
    """The document that starts a container: its terms and its first turn."""

    turn: TurnOrder
    is_standby: bool = False
    """Whether the run is started ahead. Then `turn` is a placeholder with the number 0 that has the kind of
    the coming first turn; that turn comes in `input/`, with its `terms`, which replace these.
    """

    def begun_by(self, turn: TurnOrder) -> RunOrder:
        """Return the order of a run that was started ahead, with the first turn that has arrived.

        The terms of the run are those that the turn brings, or else those of this order.
        """
        terms = turn.terms or self
        fields = {name: getattr(terms, name) for name in RunTerms.model_fields}
        return RunOrder(**fields, turn=turn.model_copy(update={"terms": None}))

    def first_turn(self) -> TurnOrder:
        """Return the first turn of this order with the order's terms in it.

        That is the form in which a run that was started ahead gets its first turn.
        """
        terms = RunTerms(**{name: getattr(self, name) for name in RunTerms.model_fields})
        return self.turn.model_copy(update={"terms": terms})


class CloseOrder(Document):
    """The content of `input/_close`: the runs of the group that are to end after their turn."""

    runs: tuple[str, ...]
