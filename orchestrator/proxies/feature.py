"""Build the two proxies that containers reach: the model service's and the egress proxy."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import structlog

from agent_runner.wire.files import write_whole
from agent_runner.wire.order import AgentName, Egress
from orchestrator.base.redaction import Redactor
from orchestrator.domain import failures
from orchestrator.domain.errors import SettingError
from orchestrator.domain.failures import ModelError
from orchestrator.domain.model_services import OF_DOTENV, ModelChoice, ModelService
from orchestrator.domain.network_targets import NetworkTarget, parse_target
from orchestrator.domain.values import Folder, Group, Turn, TurnId, TurnKind
from orchestrator.domain.web_search import SearchService
from orchestrator.groups import owner, roles, settings
from orchestrator.groups.host_context import HostContext
from orchestrator.groups.roles import Permission
from orchestrator.groups.settings import EgressAllowlist, GroupConfig
from orchestrator.proxies.approvals import Approvals
from orchestrator.proxies.egress.proxy import EgressCaller, EgressProxy
from orchestrator.proxies.mcp_gateway import McpGateway, SessionSeal
from orchestrator.proxies.mcp_logins import McpLogin, McpTokens
from orchestrator.proxies.mcp_message import KNOWN_METHODS, McpMessage
from orchestrator.proxies.model import health
from orchestrator.proxies.model.budget_admission import Admission, OnRunaway
from orchestrator.proxies.model.credentials import CredentialSource, CredentialStatus, KnownSecrets
from orchestrator.proxies.model.exchange import Answered, RunIdentity
from orchestrator.proxies.model.failover import DAY_MS, Failover
from orchestrator.proxies.model.health import ModelHealth
from orchestrator.proxies.model.host_calls import HostModelCalls, NotAnswered
from orchestrator.proxies.model.limits import ModelProxyLimits
from orchestrator.proxies.model.proxy import CredentialProxy
from orchestrator.proxies.model.routing import ModelRouter, prices_of
from orchestrator.proxies.model.server import ProxyServer, bind
from orchestrator.proxies.parsing_process import ParsingProcess
from orchestrator.proxies.run_tokens import token_hash
from orchestrator.proxies.web_search import WebSearch
from orchestrator.store import audit
from orchestrator.store.access import approvals as approval_store
from orchestrator.store.access.approvals import ApprovalKind, ApprovalRequest
from orchestrator.store.audit import AuditEvent
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.money import budgets
from orchestrator.store.money.budgets import Budget
from orchestrator.store.runs import runs, turn_outages
from orchestrator.store.runs.model_refusals import ModelRefusal
from orchestrator.store.runs.runs import TokenHolder
from orchestrator.store.settings import mcp_servers
from orchestrator.store.settings.mcp_servers import McpServer

if TYPE_CHECKING:
    from orchestrator.proxies.model.upstream_client import UpstreamClient

log = structlog.get_logger(__name__)

REQUESTS_A_TURN = 200
"""Model requests that a turn may make; a turn with more is stuck in a loop."""
SUMMARY_SECONDS = 10.0
"""Seconds that a summary may take if another service could write it instead.

Half of what the summarizer waits in all, so that a slow service is noticed while the next still has time.
"""
_NOT_USABLE = "my model cannot be used at the moment; whoever runs me knows why."
SESSION_KEY_FILE = "mcp-session-key"
"""File of the key that seals session ids of MCP servers across restarts, because containers outlive them."""
KEY_BYTES = 32
PORT_FILES = ("proxy-port", "egress-port")
"""Files under `data/` with the ports on which the model proxy and the egress proxy last listened."""


class ContainerProxies:
    """The model proxy and the egress proxy of one host. A run shows its token to both.

    `open` makes them listen, and their `loops` serve.
    """

    def __init__(
        self,
        host: HostContext,
        *,
        credentials: CredentialSource,
        address: str,
        listen_address: str | None = None,
        on_runaway: OnRunaway,
        limits: ModelProxyLimits | None = None,
    ) -> None:
        """Build the model proxy, which does not listen yet, and its budgets, approvals, failover and more.

        `open` builds the egress proxy.

        Args:
            host: the database, clock, settings and folders of the host.
            credentials: returns the keys of the model services and other secrets.
            address: the host's address, as containers see it.
            listen_address: the address on which the proxies listen, if it is another one.
            on_runaway: stops a run that sends requests without end.
            limits: the model proxy's limits; the default follows the host's settings.
        """
        self._host = host
        # Runs and groups are looked up over the connection for reading: on the connection for writing a
        # look-up would wait for other commits.
        self._reader = host.reader
        self._credentials = credentials
        self._address = address
        self._listen_address = listen_address or address
        prices = prices_of(host.settings)
        self.models = ModelRouter(host.reader, settings=host.settings, credentials=credentials, prices=prices)
        """Chooses the service and the model for a turn."""
        self.admission = Admission(
            host.database,
            clock=host.clock,
            zone=host.settings.zone,
            requests_a_turn=REQUESTS_A_TURN,
            on_queued=host.wakeups.outbox.set,
            on_noted=partial(host.bus.publish, "audit.added"),
            on_runaway=on_runaway,
            prices=prices,
        )
        self._host_calls = HostModelCalls(self._budgets)
        self._approvals = Approvals(
            host.database,
            host.reader,
            clock=host.clock,
            bus=host.bus,
            outbox=host.wakeups.outbox,
            redact=Redactor(KnownSecrets(credentials)).redact,
        )
        parsing = ParsingProcess(clock=host.clock)
        self._mcp_tokens = McpTokens(
            host.home.data,
            self._upstream,  # called later, when `self.proxy` is set
            clock=host.clock,
            on_refused=self._notify_login_refused,
        )
        self.proxy = CredentialProxy(
            credentials,
            self._identify,
            on_exchange=self.admission.usage_writer.note_exchange,
            on_denial=self.admission.usage_writer.note_denial,
            admit=self.admission.admit,
            searches=self.admission.searches,
            judge=self._judge_answer,
            # The setting 0 means: by service, see `ModelProxyLimits.first_byte_of`.
            limits=limits
            or ModelProxyLimits(first_byte_seconds=float(host.settings.andy_first_byte_seconds) or None),
            mcp=McpGateway(
                self._server_for,
                credentials.value,
                note=self.admission.usage_writer.note,
                clock=host.clock,
                parsing=parsing,
                sessions=SessionSeal(_stored_key(host.home.data / SESSION_KEY_FILE)),
                approve=self._approve_message,
                tokens=self._mcp_tokens,
            ),
            parsing=parsing,
        )
        self.web_search = WebSearch(
            host,
            admission=self.admission,
            secret=credentials.value,
            client=self.proxy.upstream,
            budgets=self._budgets,
        )
        """Searches the web for agents, if the owner chose a service that the host queries."""
        self.failover = Failover(
            host.database,
            self.models,
            clock=host.clock,
            probe=self._probe_service,
            on_change=self._wake_after_service_change,
        )
        self.health = ModelHealth(
            host.database,
            source=credentials,
            clock=host.clock,
            model_of=self._model_of_folder,
            probe=self.proxy.probe,
            on_recovery=self._notify_recovery,
            on_change=self._wake_after_model_change,
        )

    async def open(self, stack: AsyncExitStack) -> None:
        """Load the stored state and make both proxies listen. `serve` in `loops` then answers.

        When `stack` unwinds, the sockets close and the collected usage and audit rows are stored.

        Raises:
            AndyError: the proxies cannot listen, or a stored state cannot be read.
        """
        # Pushed first, so that it runs last: requests that end while the servers close are stored, too.
        stack.push_async_callback(self.admission.usage_writer.flush)
        await self.models.refresh()
        await self.health.load()
        await self.failover.load()
        await stack.enter_async_context(self.proxy)
        stack.push_async_callback(self._mcp_tokens.close)
        model_port_file, egress_port_file = PORT_FILES
        self._server = ProxyServer(self.proxy.app, self._listen(model_port_file))
        stack.callback(self._server.close)
        self._egress = EgressProxy(
            self._listen(egress_port_file),
            identify=self._egress_caller,
            note=self.admission.usage_writer.note,
            clock=self._host.clock,
            approve=self._approve_target,
        )
        stack.callback(self._egress.close)

    async def prepare(self) -> None:
        """Build the HTTP client ahead of an agent's first request, if there is a credential to send."""
        if (await asyncio.to_thread(self.credential)).setting is not None:
            await self.proxy.upstream()

    @property
    def ports(self) -> frozenset[int]:
        """Return the ports on which both proxies listen."""
        return frozenset({self._server.port, self._egress.port})

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return the loops to run, by the names that the host's status shows. Call `open` before."""
        return {
            "proxy": self._server.serve,
            "usage": self.admission.usage_writer.run,
            "egress": self._egress.serve,
            "model-health": self.health.run,
            "model-services": self.failover.run,
        }

    def credential(self) -> CredentialStatus:
        """Return which credential is set, if any, and whether the model service accepts it. May block.

        A credential that cannot be read is reported as a problem.
        """
        try:
            credential = self._credentials.current()
            refusals = self.health.refusals
        except SettingError as error:
            return CredentialStatus(problem=str(error))
        setting = credential.setting if credential is not None else None
        return CredentialStatus(setting=setting, refusals=refusals, accepted_ms=self.health.accepted_ms)

    def environment(self, group: Group, agent: AgentName, token: str) -> dict[str, str]:
        """Return the environment variables by which a container of a group finds the proxies.

        `token` is the run's token, which only the host's proxies accept; the container has it instead of the
        key for the model service. Only Claude needs the model proxy, and only a group with an allow-list the
        egress proxy.
        """
        variables: dict[str, str] = {}
        if agent == "claude":
            variables["ANTHROPIC_BASE_URL"] = f"http://{self._address}:{self._server.port}"
            variables["ANTHROPIC_API_KEY"] = token
        if egress_of(settings.of(group)) == "allowlist":
            proxy = f"http://run:{token}@{self._address}:{self._egress.port}"
            direct_hosts = f"{self._address},localhost,127.0.0.1"
            # Programs differ in the case in which they read these names. The host's own address is reached
            # directly, because the egress proxy connects only to the internet.
            variables |= dict.fromkeys(("HTTPS_PROXY", "https_proxy"), proxy)
            variables |= dict.fromkeys(("NO_PROXY", "no_proxy"), direct_hosts)
        return variables

    async def refusal(self, choice: ModelChoice) -> ModelRefusal | None:
        """Return why the chosen service would refuse a turn now, or None if it would not.

        May send the service a request to find out. Only the service of `.env` is checked.
        """
        if choice.service != OF_DOTENV:
            return None
        return await self.health.refusal(choice.model)

    async def stand_in(
        self, refusal: ModelRefusal, config: GroupConfig, turn: Turn, choice: ModelChoice
    ) -> bool:
        """Move a turn from a service that refuses it to the next one; return whether there was a next one.

        `choice` is the refusing service and its model, and `refusal` its reason. The service is then treated
        as down, for other turns too. `config` is the group's configuration.
        """
        next_choice = self.models.next_after(
            choice.service, config, turn.kind, is_isolated=turn.is_isolated, turn_id=turn.id
        )
        if next_choice is None:
            return False
        self.models.leave(turn.id, choice.service)
        await self.failover.note_down(
            choice.service, refusal.cause, status=refusal.status, model=refusal.model
        )
        return True

    async def ask_model(self, group: Group, *, model: str, system: str, text: str, max_tokens: int) -> str:
        """Send a model one request of the host's own, charged to a group, and return the answer's text.

        `model` is used unless the owner chose another for summaries; `system` is the system prompt. If the
        first service does not answer, the other services are asked in order. A service that is silent for
        `SUMMARY_SECONDS` is also reported as perhaps down, to be tested.

        Raises:
            NotAnswered: no service answered; it is the error of the first.
        """
        await self.models.refresh()
        first_error: NotAnswered | None = None
        choices = self.models.for_summaries(settings.of(group), model)
        for choice in choices:
            try:
                # The last service has no time limit here: no other is left to ask.
                async with asyncio.timeout(None if choice is choices[-1] else SUMMARY_SECONDS):
                    return await self._host_calls.ask(
                        self.proxy.app,
                        group.folder,
                        is_main=group.is_main,
                        model=choice.model or model,
                        service=self.models.catalog.service(choice.service),
                        system=system,
                        text=text,
                        max_tokens=max_tokens,
                    )
            except NotAnswered as error:
                first_error = first_error or error
            except TimeoutError:
                first_error = first_error or NotAnswered("The model did not answer in time.")
                self.failover.suspect(choice.service, choice.model or model)
        raise first_error or NotAnswered("There is no model service.")

    async def _model_of_folder(self, folder: Folder, kind: TurnKind | None) -> str | None:
        """Return the model that is set for a group's turns of a kind.

        Return None if no model is set, or there is no such group. Without a kind, the model for chats is
        returned.
        """
        async with self._reader.reading() as tx:
            group = await groups.by_folder(tx, folder)
        if group is None:
            return None
        # A task may continue the chat's conversation or be isolated from it. Which one is not known here, so
        # it is taken for an isolated one.
        return self.models.choose(
            settings.of(group), kind or TurnKind.CHAT, is_isolated=kind is TurnKind.TASK
        ).model

    async def _judge_answer(self, identity: RunIdentity, answered: Answered) -> bool:
        """Record how a model service answered a run; return whether the same request may be sent again.

        Return False after a lasting refusal, which may also stop the turn, after an outage that has lasted
        too long, and when the turn moves to another service. Else return True, also after an answer without
        an error, which ends an outage: nothing keeps the container from sending its request again.
        """
        # The failover is asked first: a turn that moves on is neither stopped nor kept waiting by this
        # service.
        if await self.failover.judge(identity, await self._with_waiting_time(identity, answered)):
            return False
        if identity.service is None:  # the service of .env, whose refusals are stored for all turns
            return await self.health.judge(identity, answered)
        if answered.error is not None and answered.error.is_permanent:
            await self._stop_refused_turn(identity, identity.service, answered, answered.error)
            return False
        if answered.error is None:
            await self.health.end_outage(identity)
            return True
        # An outage or a slow answer belongs to the turn: it is recorded alike for every service.
        return await self.health.judge(identity, answered)

    async def _stop_refused_turn(
        self, identity: RunIdentity, service: ModelService, answered: Answered, error: ModelError
    ) -> None:
        """Record that a turn is to stop, because a service that the owner added refuses it for good.

        The owner is notified at most once a day for each service and kind of error. For a run without a
        turn, that is all.
        `error` is the lasting error that the service's answer, `answered`, stands for. No other turn is
        stopped, because a container could have provoked the refusal.
        """
        now_ms = self._host.clock.now_ms()
        details = {"setting": service.key_env, "model": identity.model}
        cause = failures.refusal_cause(error, status=answered.status, **details)
        fix = failures.refusal_fix(error, **details)
        async with self._host.database.transaction() as tx:
            if identity.turn_id is not None:
                await turn_outages.note_stop(
                    tx, identity.turn_id, code="service", reason=_NOT_USABLE, now_ms=now_ms
                )
            text = f"⚠️ At the model service '{service.name}': {cause}. {fix}"
            about = f"service:{service.name}:{error.value}:{now_ms // DAY_MS}"
            await owner.notify_once(tx, text, about=about, now_ms=now_ms)
        self._host.wakeups.outbox.set()

    async def _with_waiting_time(self, identity: RunIdentity, answered: Answered) -> Answered:
        """Return `answered`, with the milliseconds since the turn's first outage if it reports an outage.

        Every other answer is returned unchanged, and so is one to a run that has no other service to move to.
        """
        if (
            answered.error is not ModelError.OUTAGE
            or identity.turn_id is None
            or not identity.other_service_answers
        ):
            return answered
        async with self._reader.reading() as tx:
            outage = await turn_outages.of_turn(tx, identity.turn_id)
        waited_ms = 0 if outage is None else self._host.clock.now_ms() - outage.since_ms
        return replace(answered, waited_ms=max(0, waited_ms))  # it is negative after the clock was set back

    async def _probe_service(self, name: str, model: str | None) -> Answered:
        """Send a short request of the host's own to a model service, and return how it answers.

        Without `model`, the first model that the service is known to have is requested.
        """
        await self.models.refresh()
        service = self.models.catalog.service(name)
        if service is None and name != OF_DOTENV:
            return Answered(error=None, status=None)  # the service was removed, so nothing is down
        return await self.proxy.probe(model or next(iter(self.models.known_models(name)), None), service)

    def _wake_after_service_change(self) -> None:
        """Wake all that waits for a model service, and the groups' queues, whose turns may have moved."""
        self._host.wakeups.lanes.set()
        self._wake_after_model_change()

    async def _notify_recovery(self, tx: Tx, refusal: ModelRefusal) -> None:
        """Notify the owner that the model service takes requests again."""
        await health.notify_recovery(tx, refusal, now_ms=self._host.clock.now_ms())

    def _wake_after_model_change(self) -> None:
        """Wake the turns that wait for the end of an outage, and the sending of the owner's notification."""
        self._host.wakeups.outages.set()
        self._host.wakeups.outbox.set()

    async def _budgets(self) -> tuple[Budget, ...]:
        """Return all budgets that are set."""
        async with self._reader.reading() as tx:
            return tuple(await budgets.every(tx))

    def _listen(self, name: str) -> socket.socket:
        """Return a socket that listens on the port of the earlier start, or on another if that is in use.

        Containers that outlived the host still use the earlier port. The file `name` in `data/` stores the
        port for the next start.
        """
        port_file = self._host.home.data / name
        listener = bind(self._listen_address, _stored_port(port_file))
        write_whole(port_file, str(listener.getsockname()[1]))
        return listener

    async def _identify(self, token_hash_text: str) -> RunIdentity | None:
        """Return the run whose token has this hash, with its present rights; None for an unknown token."""
        # The host's own requests have no run in the store.
        if (host_call := self._host_calls.identify(token_hash_text)) is not None:
            return host_call
        async with self._reader.reading() as tx:
            holder = await runs.holder_of_token(tx, token_hash_text)
        if holder is None:
            return None
        own_config = settings.parsed(holder.container_config, holder.folder)
        rights = roles.rights_of(holder.role, own_config)
        config = roles.narrowed(own_config, rights)
        service = await self._service_of_run(holder.service)
        return RunIdentity(
            run_id=holder.run_id,
            folder=holder.folder,
            turn_id=holder.turn_id,
            kind=holder.kind,
            task_id=holder.task_id,
            is_main=holder.is_main and Permission.COMMAND in rights.may,
            role=holder.role,
            may_call_servers=Permission.MCP in rights.may,
            spend=rights.spend,
            budgets=holder.budgets,
            # Only Anthropic's own search is made by the model service; the host makes all others.
            may_search=settings.search_service(config, self._host.settings) is SearchService.ANTHROPIC
            and self.admission.searches.remaining(holder.run_id, holder.turn_id) > 0,
            is_open=config.egress == "open",
            model_features=config.model_features,
            service=service,
            # For the service of `.env`, which cannot be removed, `holder.service` is None.
            removed_service=holder.service if service is None else None,
            model=holder.model,
            # A turn leaves a service that does not answer it, and moves to another one: `may_move` is whether
            # there is one that it has not left, or that has answered the host since the turn left it. For
            # `other_service_answers`, it does not matter which services the turn has left.
            may_move=holder.turn_id is not None and self._could_move(holder, config),
            other_service_answers=holder.turn_id is not None
            and self.models.other_service_answers(
                holder.service or OF_DOTENV,
                config,
                holder.kind or TurnKind.CHAT,
                is_isolated=holder.is_isolated,
            ),
            # Whether its turn has left the service of this run. No turn has the id 0, which stands for a run
            # without a turn.
            has_moved=(holder.service or OF_DOTENV) in self.models.left.get(holder.turn_id or TurnId(0), ()),
        )

    def _could_move(self, holder: TokenHolder, config: GroupConfig) -> bool:
        """Return whether another service could continue the turn of a run; `holder` is that run."""
        next_choice = self.models.next_after(
            holder.service or OF_DOTENV,
            config,
            holder.kind or TurnKind.CHAT,
            is_isolated=holder.is_isolated,
            turn_id=holder.turn_id,
        )
        return next_choice is not None

    async def _service_of_run(self, name: str | None) -> ModelService | None:
        """Return the model service with the name that a run has recorded; None if it was removed.

        The name is None for the service of `.env`; then None is returned, too.
        """
        if name is not None and self.models.catalog.service(name) is None:
            await self.models.refresh()  # it may have been added since the last look
        return self.models.catalog.service(name)

    async def _server_for(self, folder: Folder, name: str) -> McpServer | None:
        """Return an MCP server by name; None if there is none, or if this group's agents may not call it."""
        async with self._reader.reading() as tx:
            server = await mcp_servers.by_name(tx, name)
        return server if server is not None and folder in server.groups else None

    async def _egress_caller(self, token: str) -> EgressCaller | None:
        """Return the run of a token, with the targets that it may reach now; None for an unknown token.

        The role of the people whom the turn answers may allow fewer targets than the group's settings.
        """
        identity = await self._identify(token_hash(token))
        if identity is None:
            return None
        async with self._reader.reading() as tx:
            group = await groups.by_folder(tx, identity.folder)
            config = settings.of(settings.narrowed(group, identity.role)) if group else GroupConfig()
            temporary_targets = await self._temporary_targets(tx, identity.folder, config)
        return EgressCaller(
            run_id=identity.run_id,
            folder=identity.folder,
            turn_id=identity.turn_id,
            allowed=config.targets | temporary_targets,
            asks=config.asks_egress,
        )

    async def _temporary_targets(
        self, tx: Tx, folder: Folder, config: GroupConfig
    ) -> frozenset[NetworkTarget]:
        """Return the targets that the owner has allowed for a while to a group with an allow-list.

        Return an empty set for a group whose owner is asked about other targets: there `Approvals.ask` finds
        the permission.
        """
        if config.asks_egress or not isinstance(config.egress, EgressAllowlist):
            return frozenset()
        targets = await approval_store.temporary_destinations(tx, folder, now_ms=self._host.clock.now_ms())
        # Earlier versions stored IPv6 addresses with a zone, the part from `%`; none was ever reached.
        return frozenset(parse_target(target) for target in targets if "%" not in target)

    async def _approve_target(self, caller: EgressCaller, target: NetworkTarget) -> str | None:
        """Ask the owner about a target; return None when it is allowed, else the reason."""
        return await self._approvals.ask(
            ApprovalRequest(
                folder=caller.folder,
                kind=ApprovalKind.EGRESS,
                subject=str(target),
                run_id=caller.run_id,
                turn_id=caller.turn_id,
            )
        )

    async def _upstream(self) -> UpstreamClient:
        """Return the HTTP client of the model proxy, made at the first call."""
        return await self.proxy.upstream()

    async def _notify_login_refused(self, server: str, login: McpLogin) -> None:
        """Notify the owner that an MCP server no longer accepts a login, and record it in the audit.

        The owner is notified once for each login.
        """
        now_ms = self._host.clock.now_ms()
        text = (
            f"⚠️ The login at the MCP server '{server}' counts no more ({login.refused}), and agents cannot"
            f" use it. Log in again on the machine that runs me: andy mcp login {server}"
        )
        detail = {"name": server, "reason": login.refused}
        async with self._host.database.transaction() as tx:
            await owner.notify(tx, text, about=f"mcp-login:{login.id}", now_ms=now_ms)
            await audit.append(tx, AuditEvent(at_ms=now_ms, kind="mcp.login_ended", detail=detail))
        self._host.wakeups.outbox.set()

    async def _approve_message(self, identity: RunIdentity, server: str, message: McpMessage) -> str | None:
        """Ask the owner about a message to the MCP server `server`, if a rule of the group demands it.

        Only calls of tools are asked about. Return None when the message may be sent, else the reason.
        """
        async with self._reader.reading() as tx:
            group = await groups.by_folder(tx, identity.folder)
        if group is None or not settings.of(group).asks_mcp(server):
            return None  # no rule of the group is about this server
        if message.method is not None and message.method not in KNOWN_METHODS:
            # An unknown method might do what a rule forbids, under another name.
            return f"the owner has rules for this server, and the method '{message.method}' is not known"
        if message.tool is None or not settings.of(group).asks_mcp(server, message.tool):
            return None
        return await self._approvals.ask(
            ApprovalRequest(
                folder=group.folder,
                kind=ApprovalKind.MCP,
                subject=f"{server}/{message.tool}",
                call_hash=message.call_hash,
                detail=message.arguments,
                run_id=identity.run_id,
                turn_id=identity.turn_id,
            )
        )


def _stored_port(path: Path) -> int:
    """Return the port in a file, or 0, which stands for any free port, if the file has no valid one. Blocks.

    A crash may have left half of the number.
    """
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return 0
    return int(text) if text.isdecimal() and len(text) <= 5 and int(text) <= 65_535 else 0


def _stored_key(path: Path) -> bytes:
    """Return the random key in a file, which is created if missing or damaged. Blocks.

    Only the user that runs Andy may read the file.
    """
    # A crash may have left an empty file, and with an empty key anybody could seal a session.
    with suppress(FileNotFoundError):
        if len(key := path.read_bytes()) == KEY_BYTES:
            return key
    key = secrets.token_bytes(KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file gets its mode before it gets the key, so that nobody else can read it in between.
    path.touch(mode=0o600)
    path.write_bytes(key)
    return key


def egress_of(config: GroupConfig) -> Egress:
    """Return what a group's containers may reach, in the word that the container's run order has for it.

    A group whose owner is asked about targets counts as one with a list, as both use the egress proxy.
    """
    is_listed = isinstance(config.egress, EgressAllowlist) or config.asks_egress
    return "allowlist" if is_listed else cast("Egress", config.egress)


def reachable(config: GroupConfig) -> tuple[str, ...]:
    """Return the targets of a group's allow-list, as sorted `host:port`."""
    return tuple(str(target) for target in sorted(config.targets))
