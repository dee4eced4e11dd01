"""Build the order, the environment and the mounts of a run, and create the memory files of its group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from agent_runner.wire.order import AgentName, RunOrder, TurnLimits, TurnOrder
from orchestrator.containers import mount_allowlist, mounts
from orchestrator.containers.ports import ChosenAgent
from orchestrator.domain.errors import SettingError
from orchestrator.domain.model_services import OF_DOTENV, ModelChoice
from orchestrator.domain.protocols import Mount
from orchestrator.domain.values import Group, Role, Run, Turn, TurnId, TurnKind
from orchestrator.domain.web_search import SearchService
from orchestrator.groups import memory_templates, owner, roles, skills
from orchestrator.groups import settings as group_config
from orchestrator.groups.host_context import HostContext
from orchestrator.groups.roles import Permission, Rights
from orchestrator.proxies import feature
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.store.notices import host_events
from orchestrator.store.runs import runs
from orchestrator.store.runs.model_refusals import ModelRefusal
from orchestrator.store.settings import mcp_servers

log = structlog.get_logger(__name__)

WORKER_MODEL_TURNS = 10
"""Requests that a cycle of the dashboard worker may make to its model."""


class RunOrders:
    """Builds orders, environments and mounts from a group's present configuration."""

    def __init__(
        self,
        host: HostContext,
        *,
        credentials: CredentialSource,
        proxies: ContainerProxies,
        uid: int,
        mount_hindrance: Callable[[Path], str | None] = lambda _: None,
    ) -> None:
        """`uid` is the id of the user that a container runs as.

        `mount_hindrance` returns the reason why a folder of the owner cannot be mounted, or None when it can.
        """
        self._host = host
        self._settings = host.settings
        self._credentials = credentials
        self._proxies = proxies
        self._uid = uid
        self._allowlist = mount_allowlist.MountAllowlist(
            owner.OwnerFile(owner.owner_directory() / mount_allowlist.FILE, mount_allowlist.MountRules),
            home=host.home.root,
            owner_home=Path.home(),
            mount_hindrance=mount_hindrance,
        )

    def order(self, run: Run, group: Group, turn: TurnOrder, session_id: str | None) -> RunOrder:
        """Return the order of a run: one document that tells the program in the container what to do.

        It contains the first `turn`, the group's settings and the chosen model, but no secret. `session_id`
        is the session to resume; None starts a new one. Raises `SettingError` as `agent` does.
        """
        config = group_config.of(group)
        choice = self._choice(group, turn.kind, is_isolated=run.is_isolated)
        # A run keeps the model and service with which it was recorded. An older version recorded neither, and
        # no provider: then the present choice applies.
        has_recorded_model = run.provider is not None
        service = self._proxies.models.catalog.service(run.service if has_recorded_model else choice.service)
        # A plain service has only the features that all services of the Messages API have.
        is_plain = service is not None and service.kind != "anthropic"
        search = group_config.search_service(config, self._settings)
        return RunOrder(
            run=run.id,
            group=group.folder,
            chat_jid=group.jid,
            is_main=group.is_main,
            assistant_name=self._settings.assistant_name,
            timezone=self._zone(group),
            agent=self.agent(group),
            model=run.model if has_recorded_model else choice.model,
            is_plain_service=is_plain,
            window=service.window if service is not None else None,
            session_id=session_id,
            turn=turn,
            limits=TurnLimits(
                turn_seconds=(config.timeout_ms or self._settings.container_timeout) / 1000,
                model_turns=WORKER_MODEL_TURNS if turn.kind == "worker" else None,
                turn_tokens=self._settings.andy_turn_tokens or None,
                output_tokens=self._settings.andy_max_output_tokens or None,
            ),
            egress=feature.egress_of(config),
            reachable=feature.reachable(config),
            asks_egress=config.asks_egress,
            web_search=not is_plain and search is SearchService.ANTHROPIC,
            search_tool=search.is_asked_by_host,
            progress=True,
        )

    async def refusal(self, group: Group, turn: Turn) -> ModelRefusal | None:
        """Return why no model would answer a turn now; None if one may, or if the agent needs no model.

        If the chosen model service refuses and the owner has named a fallback for it, the turn is moved to
        the fallback, which is asked instead, and the refusing service is treated as down for all turns.

        The owner's choice of models is read from the database first, so that it applies from the next turn.
        """
        await self._proxies.models.refresh()
        refusal = await self._refusal(group, self._choice_of(group, turn))
        if refusal is not None and await self._proxies.stand_in(
            refusal, group_config.of(group), turn, self._choice_of(group, turn)
        ):
            return await self._refusal(group, self._choice_of(group, turn))
        return refusal

    async def refusal_ahead(self, group: Group, kind: TurnKind) -> ModelRefusal | None:
        """Return why no model would answer a turn of this kind now; None if one may.

        Called before a container is started ahead of its first turn, which would be of this kind.
        """
        await self._proxies.models.refresh()
        # A scheduled task may be outside of the group's conversation (isolated) or not. Which one will come
        # is not known, so it is taken for an isolated one.
        return await self._refusal(group, self._choice(group, kind, is_isolated=kind is TurnKind.TASK))

    async def _refusal(self, group: Group, choice: ModelChoice) -> ModelRefusal | None:
        """Return why the chosen model would not answer now; None if it may, or if the agent needs none."""
        try:
            needs_model = self.agent(group) == "claude"
        except SettingError:  # invalid credentials, which are then reported as the refusal
            needs_model = True
        return await self._proxies.refusal(choice) if needs_model else None

    def _choice_of(self, group: Group, turn: Turn) -> ModelChoice:
        """Return the model and service that would answer a turn now."""
        return self._choice(group, turn.kind, is_isolated=turn.is_isolated, turn_id=turn.id)

    def chosen_agent(self, group: Group, turn: Turn) -> ChosenAgent:
        """Return the agent, model and service that would answer a turn now. Raises `SettingError`.

        The service is returned twice: `service` includes its address, `service_name` is its name alone.
        """
        choice = self._choice_of(group, turn)
        return ChosenAgent(
            agent=self.agent(group),
            model=choice.model,
            service=self._proxies.models.provider_of(choice.service),
            service_name=None if choice.service == OF_DOTENV else choice.service,
        )

    def _choice(
        self, group: Group, kind: str, *, is_isolated: bool, turn_id: TurnId | None = None
    ) -> ModelChoice:
        """Return the model and service for a kind of turn of the group.

        `is_isolated` says whether the turn is outside of the group's conversation.

        If another service was chosen for the turn `turn_id` alone, because its first one refused, that
        applies.
        """
        return self._proxies.models.choose(
            group_config.of(group), kind, is_isolated=is_isolated, turn_id=turn_id
        )

    def agent(self, group: Group) -> AgentName:
        """Return the agent of the group or, if it has none, of the setting.

        `auto` means Claude if a model service of the group is usable, else the offline agent.

        Raises:
            SettingError: `auto` applies, and the credentials are invalid.
        """
        requested = group_config.of(group).agent or self._settings.andy_agent
        if requested == "auto":
            self._credentials.current()  # called only because it raises if the credentials are invalid
            models = self._proxies.models
            candidates = models.candidates(group_config.of(group), TurnKind.CHAT, is_isolated=False)
            is_any_usable = any(models.is_usable(candidate.service) for candidate in candidates)
            return "claude" if is_any_usable else "offline"
        return "claude" if requested == "claude" else "offline"

    def environment(self, group: Group, agent: AgentName, token: str) -> dict[str, str]:
        """Return a container's environment variables. The run's own `token` is the only secret in them."""
        return {"TZ": self._zone(group), **self._proxies.environment(group, agent, token)}

    def _zone(self, group: Group) -> str:
        """Return the name of the group's time zone."""
        return self._host.zone_of(group).key

    async def prepare(self, group: Group, role: Role | None = None) -> Sequence[Mount]:
        """Create the group's folders, and return a container's mounts. Report refused mounts to the owner.

        With a `role`, the container is for that role alone, and `group` must have settings that are narrowed
        to the role's rights. A role that may not call MCP servers gets no mount of their programs.
        """
        rights = None if role is None else roles.rights_of(role, group_config.of(group))
        folder_mounts = await asyncio.to_thread(self._make_folders, group, rights)
        skill_mounts = await self._skill_mounts(group)
        extra = await asyncio.to_thread(self.granted, group)
        if extra.refusals:
            await self._report_refusals(group, extra)
        mounts_for_all = (*folder_mounts, *skill_mounts, *extra.mounts)
        if rights is not None and Permission.MCP not in rights.may:
            return mounts_for_all
        return (*mounts_for_all, *await self._mcp_program_mounts(group))

    def granted(self, group: Group) -> mount_allowlist.ExtraMounts:
        """Return which of the group's additional mounts are granted now, and why others are not. Blocks."""
        return self._allowlist.grant(group)

    def ensure_memory_files(self, group: Group) -> None:
        """Write the memory files with which a group begins, where they are missing. Blocks."""
        memory_templates.ensure_memory(self._host.home.root, group, assistant=self._settings.assistant_name)

    def _make_folders(self, group: Group, rights: Rights | None) -> Sequence[Mount]:
        """Create the group's directories and memory files, and return their mounts. Blocks.

        `rights` are those of the role of a restricted container; None for an ordinary one.
        """
        file_rights = None
        if rights is not None:
            # The right `HISTORY` includes reading the group's files, and `MEMORY` includes writing them.
            file_rights = mounts.FileRights(
                reads=Permission.HISTORY in rights.may, writes=Permission.MEMORY in rights.may
            )
        folder_mounts = mounts.prepare(group, home=self._host.home.root, uid=self._uid, rights=file_rights)
        self.ensure_memory_files(group)
        return folder_mounts

    async def _skill_mounts(self, group: Group) -> Sequence[Mount]:
        """Copy the group's skills into a folder for its containers, and return the mount of that folder.

        Older copies are deleted, unless another container of the group may use them. Nothing is returned if
        there are no skills, or if they cannot be read.
        """
        live = await self._host.database.read(runs.live)
        # One of the group's live runs is the one that is prepared; any other uses the skills already.
        is_in_use = sum(run.folder == group.folder for run in live) > 1
        home, requested = self._host.home.root.resolve(), group_config.of(group).skills
        try:
            copied_folder = await asyncio.to_thread(
                skills.make_plugin, home, group.folder, requested, is_in_use=is_in_use
            )
        except OSError as error:
            log.warning("skills.not_laid", group=group.folder, reason=str(error))
            return ()
        return () if copied_folder is None else (Mount(source=copied_folder, target="/workspace/skills"),)

    async def _mcp_program_mounts(self, group: Group) -> Sequence[Mount]:
        """Return the mounts of the group's MCP servers that are programs; missing folders are left out."""
        async with self._host.database.reading() as tx:
            servers = await mcp_servers.of_group(tx, group.folder)
        names = [server.name for server in servers if server.command]
        return await asyncio.to_thread(self._existing_program_mounts, group, names)

    def _existing_program_mounts(self, group: Group, names: Sequence[str]) -> Sequence[Mount]:
        """Return the mounts of the folders of the MCP servers with these names; log missing ones. Blocks."""
        home = self._host.home.root.resolve()
        program_mounts = []
        for name in names:
            program_folder = mounts.program_folder(home, name)
            if program_folder is None:
                log.warning("mcp.folder_missing", group=group.folder, server=name)
            else:
                program_mounts.append(Mount(source=program_folder, target=f"/workspace/mcp/{name}"))
        return program_mounts

    async def _report_refusals(self, group: Group, extra: mount_allowlist.ExtraMounts) -> None:
        """Notify the owner of the refused mounts and why, and the group's agent that they are missing.

        The same text is sent only once.
        """
        text = "\n• ".join([f"Folders for '{group.folder}':", *extra.refusals])
        now_ms = self._host.clock.now_ms()
        log.warning("owner.notified", about=group.folder, text=text)
        async with self._host.database.transaction() as tx:
            if await owner.notify(tx, f"⚠️ {text}", about=group.folder, now_ms=now_ms):
                await host_events.mounts_refused(tx, group.folder, extra.names, now_ms=now_ms)
        self._host.wakeups.outbox.set()
