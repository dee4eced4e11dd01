"""Start a container for a queued turn, or ahead of one: record the run, prepare its directories, start it.

`RunCreator` does the steps up to the record in the store. They happen in the run's own task, while the run
occupies a slot. If the host dies before the record, the turn is still queued, unchanged. The record is made
from the state of that moment: it respects messages that were sent or deleted by then, and a turn that was
cancelled. `ContainerStarter` does the steps after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from agent_runner.wire.order import RunOrder, TurnOrder
from orchestrator.containers.live_runs import ContainerMakeup, LiveRunState
from orchestrator.containers.output import OutputReader
from orchestrator.containers.ports import PoolContext, Restoration, resume_plainly, until_stored
from orchestrator.containers.termination import (
    Orphan,
    Orphans,
    RunEnd,
    RunEndKind,
    classify,
    forced_outcome,
)
from orchestrator.domain.errors import ContainerError, EngineGone
from orchestrator.domain.failures import Outage
from orchestrator.domain.protocols import ContainerSpec, Mount, RunningContainer
from orchestrator.domain.values import Group, Run, RunState, Turn, TurnId, TurnKind, TurnState
from orchestrator.groups import settings
from orchestrator.groups.roles import Permission, rights_of
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import checkpoints, runs, sessions, turn_outages, turns
from orchestrator.store.settings import mcp_servers
from orchestrator.store.settings.mcp_servers import McpServer

log = structlog.get_logger(__name__)

PREPARE_SECONDS = 120.0
"""Seconds that preparing a container may take.

Without a limit, a folder on a hung disk would block a slot.
"""
SLOW_SECONDS = 20.0
"""Seconds after which a start counts as an outage of the engine, of which the asking person is notified."""
NO_GROUP = "this group is no longer registered."
NOTHING_TO_DO = RunEnd(
    kind=RunEndKind.CLOSED, reason="there was nothing to answer any more.", is_retryable=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A recorded run, with everything that its container is created from."""

    run: Run
    group: Group
    narrowed_group: Group
    """The group as its container sees it: for a restricted turn, its settings are narrowed to the role."""
    order: RunOrder
    environment: dict[str, str]
    restoration: Restoration | None
    """The way in which the run continues the group's conversation; None for an isolated run."""

    def log_fields(self) -> dict[str, object]:
        """Return the fields for the run's log: settings, never the prompt."""
        return {
            "runtime": self.run.runtime,
            "agent": self.order.agent,
            "model": self.order.model,
            "session": self.order.session_id or "new",
            "restore": self.run.restore_mode,
            "because": self.run.restore_reason,
            "egress": self.order.egress,
            "isolated": "yes" if self.run.is_isolated else None,
            "turn_seconds": self.order.limits.turn_seconds,
        }


class RunCreator:
    """Records new runs. One object serves all runs; the state of each run is in its `LiveRunState`."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context

    def new_run(self, turn: Turn) -> Run:
        """Return a new run, with a new id, for a turn. Stores nothing.

        Its model, session and token are not decided yet.
        """
        return Run(
            id=self._context.ports.new_run_id(),
            folder=turn.folder,
            is_isolated=turn.is_isolated,
            runtime=self._context.runtime.name,
            container_ref=None,
            token_hash="",
            last_frame=0,
            started_ms=self._context.clock.now_ms(),
            ended_ms=None,
            exit_kind=None,
            exit_detail=None,
            role=turn.role if turn.is_restricted else None,
        )

    def new_standby(self, group: Group, *, is_isolated: bool) -> Run:
        """Return a new run, with a new id, that is started ahead of its first turn. Stores nothing."""
        return self.new_run(_placeholder(group, is_isolated=is_isolated))

    async def record_standby(self, live: LiveRunState, group: Group) -> NewRun:
        """Record a run that is started ahead of its first turn; return what its container is made from.

        It gets the session, the model and the service that a turn of the group would have now. Its order says
        that it waits for a turn (`is_standby`). The run's log begins.
        """
        ports = self._context.ports
        turn = _placeholder(group, is_isolated=live.run.is_isolated)
        restoration = None if turn.is_isolated else await self._plan_restoration(turn)
        token, token_hash = ports.token()
        run = replace(live.run, token_hash=token_hash, started_ms=self._context.clock.now_ms())
        run = self._with_agent(run, group, turn, restoration)
        async with self._context.database.transaction() as tx:
            await runs.begin(tx, run)
            order = await self._order(tx, run, group, _empty_turn(run, turn), restoration)
        live.begin(run, group, now_ms=self._context.clock.steady_ms())
        live.made_with = self._makeup(group, order)
        new_run = NewRun(
            run=run,
            group=group,
            narrowed_group=group,  # not narrowed: a restricted turn never gets a container started ahead
            order=order.model_copy(update={"is_standby": True}),
            environment=dict(ports.orders.environment(group, order.agent, token)),
            restoration=None,  # it is decided again, and published, with the run's first turn
        )
        self._context.logs.begin(run, new_run.log_fields())
        return new_run

    async def begin_standby(self, live: LiveRunState, turn: Turn) -> TurnOrder | None:
        """Record a turn as running in a run that was started ahead, and return the turn's order.

        The caller has set the run's state to BUSY. The order includes the model, the session and the limits,
        which are decided only now. How the conversation continues is published. Return None when the turn or
        its group is gone, when the container is to end, or when it was made with other settings than the
        group has now.
        """
        restoration = None if turn.is_isolated else await self._plan_restoration(turn)
        async with self._context.database.transaction() as tx:
            group = await groups.by_folder(tx, turn.folder)
            if live.state is not RunState.BUSY or live.is_retired or not await is_queued(tx, turn):
                return None
            if group is None or not await self._fits(tx, live, turn, group):
                return None
            restoration = await self._valid_restoration(tx, turn, group, restoration)
            run = self._with_agent(_with_restoration(live.run, restoration), group, turn, restoration)
            await runs.note_continued(tx, run)
            await turns.start(tx, turn.id, run.id, now_ms=self._context.clock.now_ms())
            first = await self._context.ports.compose(tx, turn, group, run.id)
            order = await self._order(tx, run, group, first, restoration)
        live.run = run
        live.session_id = order.session_id
        self._publish_restored(turn, run, restoration)
        return order.first_turn()  # with the model, the session and the limits in it

    async def recreate_first_turn(self, run: Run, turn: Turn, group: Group) -> TurnOrder:
        """Compose the order of a run's first turn once more, and return it.

        An earlier host recorded the turn, but may have died before it wrote the order for the container.
        """
        restoration = None if turn.is_isolated else await self._plan_restoration(turn)
        async with self._context.database.transaction() as tx:
            restoration = await self._valid_restoration(tx, turn, group, restoration)
            first = await self._context.ports.compose(tx, turn, group, run.id)
            return (await self._order(tx, run, group, first, restoration)).first_turn()

    async def _fits(self, tx: Tx, live: LiveRunState, turn: Turn, group: Group) -> bool:
        """Return whether the container of a run that was started ahead can be used for the turn.

        It can, unless a part that cannot be changed any more differs from that of a container that would be
        made now: the group's configuration, the environment, or the owner's MCP programs.
        """
        if group.container_config != live.config:
            return False
        # Made without a turn, like the order that the container was started with.
        order = await self._order(tx, live.run, group, _empty_turn(live.run, turn), None)
        return self._makeup(group, order) == live.made_with

    def _with_agent(self, run: Run, group: Group, turn: Turn, restoration: Restoration | None) -> Run:
        """Return the run with its model, provider and service set to those that would answer the turn now.

        If `restoration`, the plan of how the conversation continues, has chosen them, the run is returned as
        it is: it has them already. The plan is None for an isolated turn.
        """
        if restoration is not None and restoration.provider is not None:
            return run
        return self._context.ports.orders.chosen_agent(group, turn).recorded_in(run)

    async def _valid_restoration(
        self, tx: Tx, turn: Turn, group: Group, planned: Restoration | None
    ) -> Restoration | None:
        """Return `planned`, or a new plan of how the conversation continues if the session changed meanwhile.

        A new plan resumes the present session as it is; without one, or if it is of another provider, it
        starts a new session. An isolated turn continues no conversation: it has no plan, and None is
        returned. For another turn, `planned` is None if its group was not found; then a new plan is made.
        """
        # The plan was made outside of this transaction, because planning reads files. Meanwhile the
        # conversation may have been reset.
        session_id = None if turn.is_isolated else await sessions.current(tx, turn.folder)
        if turn.is_isolated or (planned is not None and planned.decided_on_session == session_id):
            return planned
        chosen = self._context.ports.orders.chosen_agent(group, turn)
        answered = await checkpoints.answered(tx, turn.folder, session_id) if session_id else None
        is_of_other_provider = answered is not None and answered.provider not in (None, chosen.provider)
        return await resume_plainly(turn, group, None if is_of_other_provider else session_id)

    def _makeup(self, group: Group, order: RunOrder) -> ContainerMakeup:
        """Return the parts of a container with this order that cannot be changed after its start.

        The run's token is left out, so that the parts of two containers can be compared.
        """
        environment = dict(self._context.ports.orders.environment(group, order.agent, ""))
        return ContainerMakeup(environment=environment, mcp_programs=order.mcp_programs)

    async def record(self, live: LiveRunState, turn: Turn) -> NewRun | None:
        """Record a run, and its turn as running in it, and return what its container is started with.

        Return None if the turn no longer needs a run. While the disk refuses, this is tried again. The run's
        log begins, and the start of the turn is published.
        """
        async for attempt in until_stored():
            with attempt:
                restoration = None if turn.is_isolated else await self._plan_restoration(turn)
                new_run = await self._record(live.run, turn, restoration)
        if new_run is not None:
            live.begin(new_run.run, new_run.group, now_ms=self._context.clock.steady_ms())
            live.session_id = new_run.order.session_id
            self._publish_start(turn, new_run)
        return new_run

    async def _plan_restoration(self, turn: Turn) -> Restoration | None:
        """Decide how a new container continues the group's conversation; return None if the group is gone."""
        async with self._context.database.reading() as tx:
            group = await groups.by_folder(tx, turn.folder)
            session_id = await sessions.current(tx, turn.folder)
        return None if group is None else await self._context.ports.restore(turn, group, session_id)

    async def _record(self, run: Run, turn: Turn, restoration: Restoration | None) -> NewRun | None:
        """Record a run, and the turn as running in it, in one transaction; return what it is started with.

        `restoration` is the plan of how the conversation continues; None for an isolated turn. Return None if
        the turn is not queued any more. If its group is gone, record that the turn failed, and return None.
        """
        ports = self._context.ports
        now_ms = self._context.clock.now_ms()
        token, token_hash = ports.token()
        async with self._context.database.transaction() as tx:
            group = await groups.by_folder(tx, turn.folder)
            if not await is_queued(tx, turn):
                return None
            if group is None:
                await turns.settle(tx, turn.id, TurnState.FAILED, reason=NO_GROUP, now_ms=now_ms)
                return None
            restoration = await self._valid_restoration(tx, turn, group, restoration)
            run = _with_restoration(replace(run, token_hash=token_hash, started_ms=now_ms), restoration)
            run = self._with_agent(run, group, turn, restoration)
            await runs.begin(tx, run)
            await turns.start(tx, turn.id, run.id, now_ms=now_ms)
            first = await ports.compose(tx, turn, group, run.id)
            order = await self._order(tx, run, group, first, restoration)
            # Its settings allow no more than the role of those who ask, and so does the environment.
            narrowed_group = _narrowed_group(run, group)
            environment = dict(ports.orders.environment(narrowed_group, order.agent, token))
        return NewRun(
            run=run,
            group=group,
            narrowed_group=narrowed_group,
            order=order,
            environment=environment,
            restoration=restoration,
        )

    async def _order(
        self, tx: Tx, run: Run, group: Group, first: TurnOrder, restoration: Restoration | None
    ) -> RunOrder:
        """Return the order of a run, which tells the container what to do.

        It contains the `first` turn, the group's MCP servers and how the conversation is continued. Without a
        `restoration`, the run starts a new session.
        """
        session_id = restoration.session_id if restoration is not None else None
        group = _narrowed_group(run, group)
        order = self._context.ports.orders.order(run, group, first, session_id)
        servers = await mcp_servers.of_group(tx, group.folder) if _may_call_servers(run, group) else []
        order = _with_servers(order, group, servers)
        return order if restoration is None else order.model_copy(update={"restore": restoration.restore})

    def _publish_start(self, turn: Turn, new_run: NewRun) -> None:
        """Begin the log of a new run, and publish that its turn starts and how the conversation continues."""
        self._context.logs.begin(new_run.run, new_run.log_fields())
        ids = {"group": turn.folder, "turn": turn.id, "run": new_run.run.id}
        self._context.bus.publish("turn.started", **ids, attempt=turn.attempt)
        self._publish_restored(turn, new_run.run, new_run.restoration)

    def _publish_restored(self, turn: Turn, run: Run, restoration: Restoration | None) -> None:
        """Publish how a run continues the group's conversation.

        Nothing is published if `restoration` is None, because an isolated run continues none.
        """
        if restoration is not None:
            ids = {"group": turn.folder, "turn": turn.id, "run": run.id}
            self._context.bus.publish("conversation.restored", **ids, **restoration.event_fields())


def _placeholder(group: Group, *, is_isolated: bool) -> Turn:
    """Return a stand-in for the first turn of a run that is started ahead, whose real turn is not known yet.

    The run's order and model are decided by it. It has the id 0 and no prompt, and is never stored.
    `is_isolated` says whether the real turn will be outside of the group's conversation; of the turns that
    are expected, only those of scheduled tasks are.
    """
    return Turn(
        id=TurnId(0),
        folder=group.folder,
        chat_jid=group.jid,
        kind=TurnKind.TASK if is_isolated else TurnKind.CHAT,
        is_isolated=is_isolated,
        first_seq=None,
        last_seq=None,
        task_id=None,
        prompt=None,
        attempt=1,
        run_id=None,
        state=TurnState.QUEUED,
        reason=None,
        queued_ms=0,
        not_before_ms=0,
        started_ms=None,
        ended_ms=None,
        is_place_notified=False,
    )


def _empty_turn(run: Run, turn: Turn) -> TurnOrder:
    """Return an order without a prompt, for a container whose first turn comes later."""
    return TurnOrder(run=run.id, turn=0, kind=turn.kind.value, prompt="")


def _narrowed_group(run: Run, group: Group) -> Group:
    """Return the group with its settings narrowed to the run's role; unchanged for a run without a role."""
    return group if run.role is None else settings.narrowed(group, run.role)


def _may_call_servers(run: Run, group: Group) -> bool:
    """Return whether a run may use the group's MCP servers."""
    return run.role is None or Permission.MCP in rights_of(run.role, settings.of(group)).may


def _with_servers(order: RunOrder, group: Group, servers: Sequence[McpServer]) -> RunOrder:
    """Return a copy of the order with the group's MCP servers: those with an address, and the programs.

    A program for which the owner's approval is required is left out: it runs in the container, so its calls
    do not pass the proxy that asks for approval.
    """
    needs_approval = settings.of(group).asks_mcp
    # Servers with an address are called through the host's proxy; programs run in the container.
    at_proxy = tuple(server.name for server in servers if server.url)
    programs = {
        server.name: server.command
        for server in servers
        if server.command and not needs_approval(server.name)
    }
    return order.model_copy(update={"mcp_servers": at_proxy, "mcp_programs": programs})


def _with_restoration(run: Run, restoration: Restoration | None) -> Run:
    """Return a copy of the run that records the conversation's restoration.

    That is its model, provider and service, and its mode with the reason.

    Without a restoration (None) the run is returned unchanged.
    """
    if restoration is None:
        return run
    return replace(
        run,
        model=restoration.model,
        provider=restoration.provider,
        service=restoration.service,
        restore_mode=restoration.restore.mode,
        restore_reason=restoration.restore.reason,
    )


async def is_queued(tx: Tx, turn: Turn) -> bool:
    """Return whether a turn is still queued in the store.

    It may have been cancelled since the queue was read.
    """
    current = await turns.get(tx, turn.id)
    return current is not None and current.state is TurnState.QUEUED


class ContainerStarter:
    """Starts containers and hands them to the output reader."""

    def __init__(
        self, context: PoolContext, *, creator: RunCreator, reader: OutputReader, orphans: Orphans
    ) -> None:
        """`creator` records runs, `reader` reads output, and `orphans` has containers that were given up."""
        self._context = context
        self._creator = creator
        self._reader = reader
        self._orphans = orphans

    async def run(self, live: LiveRunState, turn: Turn) -> RunEnd:
        """Start a container for a turn, read its output to the end, and return how it ended.

        If the turn needs no run any more, none is started.
        """
        new_run = await self._creator.record(live, turn)
        if new_run is None:
            return NOTHING_TO_DO
        return await self._start_and_read(live, new_run, RunState.BUSY, turn)

    async def run_ahead(self, live: LiveRunState, group: Group) -> RunEnd:
        """Start a container ahead of its first turn, read its output to the end, and return how it ended.

        The run can be given a turn as soon as its directories exist, even before the container has booted.
        """
        return await self._start_and_read(
            live, await self._creator.record_standby(live, group), RunState.READY
        )

    async def _start_and_read(
        self, live: LiveRunState, new_run: NewRun, state: RunState, turn: Turn | None = None
    ) -> RunEnd:
        """Make the container of a recorded run, read its output to the end, and return how it ended.

        `state` is the state of the run after the start: BUSY with its `turn`, or READY for its first turn,
        which is then None. An error of the start is returned as an end, not raised.
        """
        try:
            async with asyncio.timeout(PREPARE_SECONDS):
                spec = await self._prepare(new_run)
            if turn is not None:
                await self._context.ports.before_turn(turn)
            if (stopped := forced_outcome(live)) is not None:
                return stopped
            if state is RunState.READY:  # it can be given a turn before its container has booted
                live.enter(state, self._context.clock.steady_ms())
                self._context.wakeups.lanes.set()
            live.container = container = await self._start(live, spec, new_run.order)
        except (ContainerError, OSError) as error:
            return classify(error)
        if (stopped := forced_outcome(live)) is not None:
            return stopped  # the run was dismissed while its container was made
        if state is RunState.BUSY:
            live.enter(state, self._context.clock.steady_ms())
        async with self._context.database.transaction() as tx:
            await runs.note_ref(tx, live.run.id, container.ref)
            running_turn = await turns.running_in(tx, live.run.id)
            if running_turn is not None:
                await turn_outages.end(tx, running_turn.id, Outage.ENGINE)
        self._context.bus.publish(
            "run.started", group=live.run.folder, run=live.run.id, detail=container.ref[:12]
        )
        return await self._reader.follow(live, container)

    async def _prepare(self, new_run: NewRun) -> ContainerSpec:
        """Prepare the directories and mounts, and return the description of the container to start.

        Containers that were given up are removed first. From now on requests in the group's mailbox are
        noticed. The mounts are written to the run's log. A warning is logged if the container can reach all
        of the internet.

        Raises:
            ContainerError, OSError: the preparation failed, so the container must not be started.
        """
        run = new_run.run
        await self._remove_orphans(run)
        mounts = await self._context.ports.orders.prepare(new_run.narrowed_group, run.role)
        self._context.logs.note(run.id, "run.mounts", _mount_targets(mounts))
        await self._context.ports.mailboxes.watch(run.folder)
        spec = _container_spec(new_run, mounts)
        if spec.is_open:
            log.warning("run.reaches_the_internet", run=run.id, group=run.folder)
        return spec

    async def _start(self, live: LiveRunState, spec: ContainerSpec, order: RunOrder) -> RunningContainer:
        """Start the container. If the engine takes long, that is recorded as an outage meanwhile.

        Raises:
            ContainerError: the container was not started. After `EngineGone` it may exist nevertheless: it is
                listed as an orphan, to be removed later.
        """
        slow_start = self._context.tasks.create_task(
            self._note_slow_start(live), name=f"slow-start:{live.run.id}"
        )
        try:
            return await self._context.runtime.start(spec, order.to_json())
        except EngineGone:
            # The engine may have created the container although it did not answer. Such a container has not
            # received an order, so it does nothing.
            self._orphans.add(Orphan.of(live.run, may_work=False))
            raise
        finally:
            slow_start.cancel()

    async def _note_slow_start(self, live: LiveRunState) -> None:
        """Wait `SLOW_SECONDS`, then record that the run's turn waits for the engine.

        Cancelled by a faster start. The engine's own timeout, a minute, is too long to leave the asking
        person uninformed.
        """
        await asyncio.sleep(SLOW_SECONDS)
        await self._reader.note_outage(live)

    async def _remove_orphans(self, run: Run) -> None:
        """Remove orphans, containers that were given up but may still exist, before a run is started.

        Two containers that work on one session would lose a part of it.

        Raises:
            EngineGone: the engine does not answer.
            ContainerError: an orphan that may still work on this run's session cannot be ended.
        """
        await self._orphans.remove_all()
        if self._orphans.blocks_session_of(run):
            raise ContainerError("An earlier container of this group cannot be ended: see 'andy status'.")


def _container_spec(new_run: NewRun, mounts: Sequence[Mount]) -> ContainerSpec:
    """Return the description of the container to start: its mounts and the limits of its group.

    A limit that the group does not set is the default of `ContainerSpec`.
    """
    run, config = new_run.run, settings.of(new_run.narrowed_group)
    spec = ContainerSpec(run_id=run.id, folder=run.folder, mounts=mounts, environment=new_run.environment)
    return replace(
        spec,
        memory_bytes=config.memory_mb * 1024**2 if config.memory_mb else spec.memory_bytes,
        cpus=config.cpus or spec.cpus,
        is_open=config.egress == "open",
        node_label=config.node_label,
    )


def _mount_targets(mounts: Sequence[Mount]) -> dict[str, object]:
    """Return the targets of the mounts, each with `rw` or `ro`, as a field for the log."""
    targets = (f"{mount.target}:{'rw' if mount.is_writable else 'ro'}" for mount in mounts)
    return {"targets": ",".join(targets)}
