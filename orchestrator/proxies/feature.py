"""Wire the two proxies that containers reach: the one of the model service, and the egress proxy."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import cast

import structlog

from agent_runner.wire.order import AgentName, Egress
from orchestrator.base.redaction import Redactor
from orchestrator.domain.errors import SettingError
from orchestrator.domain.network_targets import NetworkTarget
from orchestrator.domain.values import Folder, Group, TurnKind
from orchestrator.groups import settings
from orchestrator.groups.host_context import HostContext
from orchestrator.groups.settings import EgressAllowlist, GroupConfig
from orchestrator.proxies.approvals import Approvals
from orchestrator.proxies.egress.proxy import EgressCaller, EgressProxy
from orchestrator.proxies.mcp_gateway import McpGateway, SessionSeal
from orchestrator.proxies.mcp_message import KNOWN_METHODS, McpMessage
from orchestrator.proxies.model import health
from orchestrator.proxies.model.budget_admission import Admission, OnRunaway
from orchestrator.proxies.model.credentials import CredentialSource, CredentialStatus, KnownSecrets
from orchestrator.proxies.model.exchange import Answered, RunIdentity
from orchestrator.proxies.model.health import ModelHealth
from orchestrator.proxies.model.host_calls import HostModelCalls
from orchestrator.proxies.model.proxy import CredentialProxy
from orchestrator.proxies.model.server import ProxyServer, bind
from orchestrator.proxies.model.token_usage import Prices, per_million
from orchestrator.proxies.parsing_process import ParsingProcess
from orchestrator.proxies.run_tokens import token_hash
from orchestrator.store import budgets, groups, mcp_servers, runs
from orchestrator.store.approvals import ApprovalKind, ApprovalRequest
from orchestrator.store.budgets import Budget
from orchestrator.store.database import Tx
from orchestrator.store.mcp_servers import McpServer
from orchestrator.store.model_refusals import ModelRefusal

log = structlog.get_logger(__name__)

REQUESTS_A_TURN = 200
"""Of the model; more is a loop that runs away."""
SESSION_KEY_FILE = "mcp-session-key"
"""Seals the ids of sessions at MCP servers, also across a restart: containers live through one."""
PORT_FILES = ("proxy-port", "egress-port")
"""Files under `data/` with the ports that the proxies listened on last."""


class ContainerProxies:
    """Both proxies. `open` makes them listen and their `loops` serve. Each run shows its token to either."""

    def __init__(
        self,
        host: HostContext,
        *,
        credentials: CredentialSource,
        address: str,
        listen_address: str | None = None,
        on_runaway: OnRunaway,
    ) -> None:
        """Make both proxies; none listens yet.

        Args:
            address: the host's, as containers see it.
            listen_address: where the proxies listen, if containers know that by another name.
            on_runaway: stops a run that asks its model without end.
        """
        self._host = host
        # Its own connection: a container that connects does not wait for others' commits.
        self._reader = host.reader
        self._credentials = credentials
        self._address = address
        self._listen_address = listen_address or address
        self.admission = Admission(
            host.database,
            clock=host.clock,
            zone=host.settings.zone,
            requests_a_turn=REQUESTS_A_TURN,
            on_queued=host.wakeups.outbox.set,
            on_noted=partial(host.bus.publish, "audit.added"),
            on_runaway=on_runaway,
            prices=Prices(
                {
                    name: per_million(**price.model_dump())
                    for name, price in (host.settings.andy_prices or {}).items()
                },
                search_usd=host.settings.andy_search_price,
            ),
        )
        self._own = HostModelCalls(self._budgets)
        self._approvals = Approvals(
            host.database,
            host.reader,
            clock=host.clock,
            bus=host.bus,
            outbox=host.wakeups.outbox,
            redact=Redactor(KnownSecrets(credentials)).redact,
        )
        parsing = ParsingProcess(clock=host.clock)
        self.proxy = CredentialProxy(
            credentials,
            self._identify,
            on_exchange=self.admission.usage_writer.exchanged,
            on_denial=self.admission.usage_writer.denied,
            admit=self.admission.admit,
            judge=self._judge,
            mcp=McpGateway(
                self._server_for,
                credentials.value,
                note=self.admission.usage_writer.note,
                clock=host.clock,
                parsing=parsing,
                sessions=SessionSeal(_stored_key(host.home.data / SESSION_KEY_FILE)),
                approve=self._approve_message,
            ),
            parsing=parsing,
        )
        self.health = ModelHealth(
            host.database,
            source=credentials,
            clock=host.clock,
            model_of=self._model_of_folder,
            probe=self.proxy.probe,
            on_recovery=self._notify_recovery,
            on_change=self._model_has_changed,
        )

    async def open(self, stack: AsyncExitStack) -> None:
        """Listen until `stack` unwinds; then what is noted is stored. Raises `AndyError`."""
        stack.push_async_callback(self.admission.usage_writer.flush)
        await self.health.load()
        await stack.enter_async_context(self.proxy)
        self._server = ProxyServer(self.proxy.app, self._listen(PORT_FILES[0]))
        stack.callback(self._server.close)
        self._egress = EgressProxy(
            self._listen(PORT_FILES[1]),
            identify=self._caller,
            note=self.admission.usage_writer.note,
            clock=self._host.clock,
            approve=self._approve_target,
        )
        stack.callback(self._egress.close)

    async def prepare(self) -> None:
        """Load what the first request of an agent would wait for, where there is a credential for one."""
        if (await asyncio.to_thread(self.credential)).setting is not None:
            await self.proxy.upstream()

    @property
    def ports(self) -> frozenset[int]:
        """The ports that both proxies listen on."""
        return frozenset({self._server.port, self._egress.port})

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return the loops to run, by the names that the status shows."""
        return {
            "proxy": self._server.serve,
            "usage": self.admission.usage_writer.run,
            "egress": self._egress.serve,
            "model-health": self.health.run,
        }

    def credential(self) -> CredentialStatus:
        """What is known of the credential, and whether the model service takes it. May block for its file."""
        try:
            found = self._credentials.current()
            refusals = self.health.refusals
        except SettingError as error:
            return CredentialStatus(problem=str(error))
        setting = found.setting if found is not None else None
        return CredentialStatus(setting=setting, refusals=refusals, accepted_ms=self.health.accepted_ms)

    def environment(self, group: Group, agent: AgentName, token: str) -> dict[str, str]:
        """Return the environment variables by which a container finds the proxies.

        Its "key" is the token of its run, which is worth nothing elsewhere.
        """
        variables: dict[str, str] = {}
        if agent == "claude":
            variables["ANTHROPIC_BASE_URL"] = f"http://{self._address}:{self._server.port}"
            variables["ANTHROPIC_API_KEY"] = token
        if egress_of(settings.of(group)) == "allowlist":
            proxy = f"http://run:{token}@{self._address}:{self._egress.port}"
            around = f"{self._address},localhost,127.0.0.1"
            variables |= {"HTTPS_PROXY": proxy, "https_proxy": proxy, "NO_PROXY": around, "no_proxy": around}
        return variables

    async def ask_model(self, group: Group, *, model: str, system: str, text: str, max_tokens: int) -> str:
        """Ask a model once for the host itself, on the account of a group. Raises `NotAnswered`."""
        return await self._own.ask(
            self.proxy.app,
            group.folder,
            is_main=group.is_main,
            model=model,
            system=system,
            text=text,
            max_tokens=max_tokens,
        )

    async def _model_of_folder(self, folder: Folder, kind: TurnKind | None) -> str | None:
        async with self._reader.reading() as tx:
            group = await groups.by_folder(tx, folder)
        return None if group is None else self._host.model_of(group, kind or TurnKind.CHAT)

    async def _judge(self, identity: RunIdentity, answered: Answered) -> bool:
        return await self.health.judge(identity, answered)

    async def _notify_recovery(self, tx: Tx, refusal: ModelRefusal) -> None:
        await health.notify_recovery(tx, refusal, now_ms=self._host.clock.now_ms())

    def _model_has_changed(self) -> None:
        self._host.wakeups.outages.set()
        self._host.wakeups.outbox.set()

    async def _budgets(self) -> tuple[Budget, ...]:
        async with self._reader.reading() as tx:
            return tuple(await budgets.every(tx))

    def _listen(self, name: str) -> socket.socket:
        """Listen where containers of an earlier start expect it, if that is free."""
        kept = self._host.home.data / name
        preferred = int(kept.read_text()) if kept.is_file() else 0
        listener = bind(self._listen_address, preferred)
        kept.write_text(str(listener.getsockname()[1]))
        return listener

    async def _identify(self, hashed: str) -> RunIdentity | None:
        if (own := self._own.identify(hashed)) is not None:
            return own
        async with self._reader.reading() as tx:
            bearer = await runs.bearer_of(tx, hashed)
        if bearer is None:
            return None
        config = settings.parsed(bearer.container_config, bearer.folder)
        return RunIdentity(
            run_id=bearer.run_id,
            folder=bearer.folder,
            turn_id=bearer.turn_id,
            kind=bearer.kind,
            task_id=bearer.task_id,
            is_main=bearer.is_main,
            budgets=bearer.budgets,
            may_search=settings.may_search(config, self._host.settings)
            and self.admission.may_search(bearer.run_id, bearer.turn_id),
            is_open=config.egress == "open",
        )

    async def _server_for(self, folder: Folder, name: str) -> McpServer | None:
        async with self._reader.reading() as tx:
            server = await mcp_servers.by_name(tx, name)
        return server if server is not None and folder in server.groups else None

    async def _caller(self, token: str) -> EgressCaller | None:
        """Whose token it is, and what the group's list allows at this moment."""
        identity = await self._identify(token_hash(token))
        if identity is None:
            return None
        async with self._reader.reading() as tx:
            group = await groups.by_folder(tx, identity.folder)
        config = settings.of(group) if group else GroupConfig()
        return EgressCaller(
            run_id=identity.run_id,
            folder=identity.folder,
            turn_id=identity.turn_id,
            allowed=config.targets,
            asks=config.asks_egress,
        )

    async def _approve_target(self, caller: EgressCaller, target: NetworkTarget) -> str | None:
        return await self._approvals.ask(
            ApprovalRequest(
                folder=caller.folder,
                kind=ApprovalKind.EGRESS,
                subject=str(target),
                run_id=caller.run_id,
                turn_id=caller.turn_id,
            )
        )

    async def _approve_message(self, identity: RunIdentity, server: str, message: McpMessage) -> str | None:
        async with self._reader.reading() as tx:
            group = await groups.by_folder(tx, identity.folder)
        if group is None or not settings.of(group).asks_mcp(server):
            return None
        if message.method is not None and message.method not in KNOWN_METHODS:
            # It might do what the rule speaks of, by a name that the rule does not have.
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


def _stored_key(path: Path) -> bytes:
    """Return the random key in a file of the owner's alone, made where there is none. Blocks."""
    with suppress(FileNotFoundError):
        return path.read_bytes()
    key = secrets.token_bytes(32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(key)
    return key


def egress_of(config: GroupConfig) -> Egress:
    """Return how a run's order states what the group reaches outside."""
    is_listed = isinstance(config.egress, EgressAllowlist) or config.asks_egress
    return "allowlist" if is_listed else cast("Egress", config.egress)


def reachable(config: GroupConfig) -> tuple[str, ...]:
    """Return the targets on a group's allowlist, as sorted `host:port`."""
    return tuple(str(target) for target in sorted(config.targets))
