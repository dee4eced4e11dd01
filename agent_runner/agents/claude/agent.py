"""The agent that is Claude, through the Claude Agent SDK and the CLI in its wheel."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from typing import TYPE_CHECKING, Any

from agent_runner.agents.claude import shown_files
from agent_runner.agents.claude.cli_command import CliSettings, StartedCli, start_cli
from agent_runner.agents.claude.cli_transport import CliProcess
from agent_runner.agents.claude.restore import RestoreHooks
from agent_runner.agents.claude.sdk_import import import_sdk
from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.error_log import log_fault
from agent_runner.interfaces import Say, TurnOutcome
from agent_runner.ipc_client import HostClient
from agent_runner.progress import TurnProgress
from agent_runner.tools.mcp_server import ToolServer
from agent_runner.wire.order import RestoreMode, RunOrder, TurnOrder
from agent_runner.workspace import Workspace

if TYPE_CHECKING:
    import claude_agent_sdk

logger = logging.getLogger(__name__)

DISCONNECT_SECONDS = 1.4
"""Seconds that the SDK and the CLI may take to end; then the CLI is killed."""
COMPACTED = "🗜️ I have put our conversation into a summary and go on from there."
SILENT = "SILENT"
"""The answer of a model that has nothing to say."""
NOTHING_TO_COMPACT = "There is no conversation to compact yet."


class ClaudeAgent:
    """One Claude session. If the session to resume is gone, a new one replaces it, once.

    Only the last text of a turn is sent; the model's text between tool calls is not.
    """

    def __init__(
        self,
        order: RunOrder,
        workspace: Workspace,
        host: HostClient,
        noticing: LazyNotices,
        progress: TurnProgress | None = None,
        *,
        started: StartedCli | None = None,
    ) -> None:
        """Set up the agent; it starts no CLI yet.

        `order` is the host's order for the run; `host` sends the tools' requests to the host; `noticing` has
        the notices for the model. `progress` reports what the model does, to nobody if it is None. `started`
        is a CLI that already runs for this order and is used by the agent; None if there is none.
        """
        self.session_id: str | None = None
        """The id of the CLI's session; None until the CLI has reported it."""
        self._order = order
        self._workspace = workspace
        self._noticing = noticing
        self._progress = progress or TurnProgress()
        self._tools = ToolServer(order, host, noticing)
        self._restoring = RestoreHooks(order.restore, host)
        self._resumed: str | None = None
        """The session that the CLI was started to resume; None for a new one."""
        self._was_started_ahead = False
        """Whether the CLI in use was started before the first turn's order came."""
        self._cli = CliProcess(started, self._tools) if started else None
        self._client: claude_agent_sdk.ClaudeSDKClient | None = None
        self._sdk: Any = None
        self._stream: Any = None
        self._notice_hooks: Any = None
        self._subagents: Any = None

    @property
    def restored(self) -> RestoreMode | None:
        """The mode in which the conversation really continues; None before a CLI is connected."""
        return self._restoring.mode if self._client is not None else None

    async def start(self) -> None:
        """Connect to the CLI, resuming the ordered session; if that is gone, start a new session.

        Raises what the SDK raises for any other failure.
        """
        try:
            await self._connect(self._order.session_id)
        except Exception as error:
            if not self._is_session_gone(error):
                raise
            await self._start_new_session()

    async def begin(self, order: RunOrder) -> bool:
        """Take the first turn's order, for an agent that was started ahead of it.

        Return True if the CLI that already runs can be used for the order. Return False if there is no CLI,
        if it has ended, or if it was started with other settings: a CLI is then dropped, and `start` has to
        be called again.
        """
        self._order = order
        # With `is_standby`, as when the CLI was started: only then do the settings contain the state of the
        # files that a CLI reads at boot, which may have changed since.
        fields = order.model_dump() | {"is_standby": True}
        wanted = await asyncio.to_thread(CliSettings.of, fields, self._workspace)
        if self._client is not None and self._cli is not None and self._cli.is_ready():
            if wanted == self._cli.settings:
                self._restoring.begin(order.restore)
                self._stream.resumes(order.restore.so_far)
                self._was_started_ahead = True
                return True
            logger.warning("the CLI is started again: its settings have changed")
        await self._drop_unused_cli()
        return False

    async def answer(self, turn: TurnOrder, say: Say) -> TurnOutcome:
        """Ask the model, and pass its answer to `say`, which sends a text to the chat. Return the outcome.

        If the CLI ended before anything reached the model, another CLI gets the turn, once. A CLI that was
        started ahead may have died while it waited: the other one then resumes the same session. If the CLI
        was not started ahead but had a session to resume, that session is taken to be gone, and the other one
        begins a new session.

        Raises any other error, and every error of the second try.
        """
        self._tools.turn = turn.turn
        self._notice_hooks.begin_turn()
        self._subagents.begin_turn()
        try:
            return await self._carry_out(turn, say)
        except Exception as error:
            if self._was_started_ahead and self._has_not_reached_model(error):
                await self._drop_unused_cli()
                await self.start()
            elif self._is_session_gone(error):
                await self._start_new_session()
            else:
                raise
            return await self._carry_out(turn, say)

    async def close(self) -> None:
        """Disconnect and kill the CLI, which has `DISCONNECT_SECONDS` to finish its transcript."""
        client, cli = self._client, self._cli
        self._client = self._cli = None
        try:
            if client is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DISCONNECT_SECONDS):
                        await client.disconnect()
        finally:
            if cli is not None:
                cli.kill()

    async def _connect(self, resume: str | None) -> None:
        """Make the CLI run, import the SDK while it boots, then connect them.

        `resume` is the session to continue; None starts a new one.
        """
        self._resumed = resume
        order = self._order.model_dump() | {"session_id": resume}
        settings = await asyncio.to_thread(CliSettings.of, order, self._workspace)
        self._run_cli(settings, settings.command())
        self._sdk = await asyncio.to_thread(_load_sdk)
        self._make_hooks()
        sdk_options = self._sdk.options(
            settings,
            self._order,
            self._restoring.hooks(),
            notice_hooks=self._notice_hooks,
            subagents=self._subagents,
        )
        # Only the SDK knows the command for certain: if it is another, the booting CLI is replaced.
        cli = self._run_cli(settings, self._sdk.sdk_command(sdk_options, settings) or settings.command())
        if self._noticing.starts_with_notice:
            self._noticing.warm_soon()  # loaded while the CLI is still booting
        self._client = await self._sdk.connect(cli, sdk_options)
        self._stream.usage = self._client.get_context_usage

    def _make_hooks(self) -> None:
        """Make the reader of the CLI's messages, the notice hooks and the limit of subagents, once.

        Later connections use the same ones.
        """
        # Made once: they store figures of the conversation, which stay valid for the next connection.
        if self._stream is None:
            self._subagents = self._sdk.SubagentLimit()
            # The figures of the conversation that is resumed; a new session has none.
            figures = self._order.restore.so_far if self._resumed else None
            self._stream = self._sdk.SdkStreamEvents(self._noticing, self._progress, so_far=figures)
            self._notice_hooks = self._sdk.NoticeHooks(
                self._noticing, stream=self._stream, on_first_prompt=self._notify_resumed
            )

    def _notify_resumed(self) -> None:
        """Add a notice that tells the model how its conversation continues, and for which reason."""
        mode, reason = self._restoring.mode, self._order.restore.reason
        self._noticing.do(lambda rules: rules.resumed(mode, reason, session_id=self.session_id))

    def _run_cli(self, settings: CliSettings, command: list[str]) -> CliProcess:
        """Return the running CLI if it has exactly this command; else kill it, start another and return that.

        Called in the main thread, because the CLI dies with the thread that started it.
        """
        if self._cli is not None and self._cli.command == command:
            return self._cli
        if self._cli is not None:
            logger.warning("the CLI is started again: its command was another")
            self._cli.kill()
        self._cli = CliProcess(start_cli(settings, command), self._tools)
        return self._cli

    async def _drop_unused_cli(self) -> None:
        """Kill and disconnect a CLI that got no prompt: it died while it waited, or has other settings.

        For the CLI that follows, the text to restore and the size of the conversation are taken from the run
        order again.
        """
        self._was_started_ahead = False
        # Killed first: it has no transcript to finish, so `close` need not wait for it.
        if self._cli is not None:
            self._cli.kill()
        try:
            await self.close()
        except Exception as error:  # noqa: BLE001  # a new one is started
            log_fault("the CLI that waited did not close", error)
        self._restoring.begin(self._order.restore)
        if self._stream is not None:
            self._stream.resumes(self._order.restore.so_far)

    async def _start_new_session(self) -> None:
        """Connect a CLI with a new session, because the session to resume is gone."""
        logger.warning("the session to resume is gone; a new one begins")
        await self.close()
        self._restoring.begin_new_session()
        if self._stream is not None:
            self._stream.compacted()  # so that it forgets the size of the old session
        await self._connect(None)

    def _is_session_gone(self, error: Exception) -> bool:
        """Return whether an error means that the session to resume does not exist."""
        return self._resumed is not None and self._has_not_reached_model(error)

    def _has_not_reached_model(self, error: Exception) -> bool:
        """Return whether the CLI ended before it had a session: then nothing has reached the model."""
        return self.session_id is None and self._sdk is not None and isinstance(error, self._sdk.ProcessError)

    async def _carry_out(self, turn: TurnOrder, say: Say) -> TurnOutcome:
        """Carry out a turn: compact the conversation if that is the turn's command, else ask the model.

        `say` sends a text to the chat. Return the outcome.
        """
        if turn.command == "compact":
            return await self._compact(say)
        return await self._ask(turn.prompt, say)

    async def _compact(self, say: Say) -> TurnOutcome:
        """Make the CLI summarise the conversation, and return the outcome.

        `say` sends the chat a text: that it was done, or why not. An error is returned in the outcome and not
        sent.
        """
        if self._resumed is None and self.session_id is None:  # the CLI has no session yet
            await say(NOTHING_TO_COMPACT)
            return TurnOutcome()
        compacted = await self._sdk.compact(self._client, self._cli, self._record_session, self._stream)
        outcome: TurnOutcome = self._sdk.outcome_of(compacted)
        if outcome.error is None:
            reason = " ".join(str(compacted.result.result or "no reason given").split())
            await say(COMPACTED if compacted.has_boundary else f"I could not compact this: {reason}")
        return outcome

    async def _ask(self, prompt: str, say: Say) -> TurnOutcome:
        """Ask the model, a second time if the CLI dropped the prompt, and send its answers with `say`.

        There are two answers if an urgent notice made the model continue after its first. Files that the
        prompt names are sent with it. Return the outcome, which has an error if there was one; an error is
        not sent to the chat.
        """
        content = await asyncio.to_thread(shown_files.content_of, prompt, self._workspace.group)
        prompt_outcome = await self._sdk.ask(self._client, content, self._record_session, self._stream)
        if prompt_outcome.is_dropped:
            logger.warning("the CLI dropped a prompt whose hooks took too long; it is asked again")
            self._restoring.repeat_text()  # the text that was put before the prompt was dropped, too
            prompt_outcome = await self._sdk.ask(self._client, content, self._record_session, self._stream)
        outcome: TurnOutcome = self._sdk.outcome_of(prompt_outcome)
        if outcome.error is None:
            for text in _answers_to_send(self._notice_hooks.answered_already, prompt_outcome.result.result):
                await say(text)
        return outcome

    def _record_session(self, session_id: str) -> None:
        """Store the id of the session, which the CLI's first message has."""
        self.session_id = session_id


def _answers_to_send(*texts: Any) -> list[str]:
    """Return the answers of one turn that are to be sent, without empty ones and those that are `SILENT`.

    There are several if the model was made to continue after its first answer. If all are `SILENT`, the last
    is returned, as the host decides what to do with it.
    """
    answers = [text for text in texts if isinstance(text, str) and text.strip()]
    # `**SILENT**` and `SILENT.` count, too.
    not_silent = [text for text in answers if text.strip().strip("*.") != SILENT]
    return not_silent or answers[-1:]


def _load_sdk() -> Any:
    """Import the SDK and the module that uses it, and return that module. Slow: call it in a thread."""
    import_sdk()
    return importlib.import_module("agent_runner.agents.claude.sdk_client")
