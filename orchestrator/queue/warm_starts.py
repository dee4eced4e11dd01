"""Start containers ahead of the turns that signs announce. `warm_start_policy` decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from orchestrator.containers.pool import RunPool
from orchestrator.domain.errors import EngineGone, SettingError
from orchestrator.domain.turn_signs import Sign, TurnSign
from orchestrator.domain.values import ContextMode, Folder, Group, TurnKind
from orchestrator.groups.host_context import HostContext
from orchestrator.proxies.model import budget_sums
from orchestrator.queue import warm_start_policy
from orchestrator.queue.warm_start_policy import DUE_WITHIN_MS, ExpectedTurn
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.loop import loops
from orchestrator.store.loop.loops import LoopStatus
from orchestrator.store.money import budgets
from orchestrator.store.runs import turns
from orchestrator.store.runs.model_refusals import ModelRefusal
from orchestrator.store.schedule import tasks

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 60.0
PAUSE_SECONDS = 0.25
"""Seconds between two looks: a chat in which hundreds of messages come is not worth hundreds of looks."""


class WarmStarts:
    """Starts containers ahead of turns that signs announce, or that are due within seconds.

    The host runs its loop only if the setting allows containers that are started ahead.
    """

    def __init__(
        self,
        host: HostContext,
        pool: RunPool,
        *,
        cap: Callable[[], int],
        refusal: Callable[[Group, TurnKind], Awaitable[ModelRefusal | None]],
        is_taking_work: Callable[[], bool],
    ) -> None:
        """Set up; `run` starts containers.

        Args:
            host: the host.
            pool: the host's containers.
            cap: returns how many containers may be live at the same time, as of now.
            refusal: returns why no model would answer a turn of a group now; None if one may.
            is_taking_work: returns False while the host shuts down.
        """
        self._host = host
        self._pool = pool
        self._cap = cap
        self._refusal = refusal
        self._is_taking_work = is_taking_work

    async def run(self) -> None:
        """Start containers for turns that are expected, until cancelled."""
        while True:
            seconds = await self.look()
            await asyncio.sleep(PAUSE_SECONDS)
            await self._host.wakeups.foresight.wait(at_most_seconds=max(0.0, seconds - PAUSE_SECONDS))

    async def look(self) -> float:
        """Start containers for turns that signs announce, such as typing, and for turns that are due soon.

        A sign for which no slot is free now is dropped. Return in how many seconds to call this again.
        """
        signs, now_ms = self._host.signs.take(), self._host.clock.now_ms()
        soon_ms = now_ms + DUE_WITHIN_MS
        async with self._host.reader.reading() as tx:
            expected = [*await self._expected(tx, signs, now_ms), *await _due(tx, before_ms=soon_ms)]
            next_ms = await _next_due_ms(tx, after_ms=soon_ms)
        if expected and self._is_taking_work():
            await self._start(expected, now_ms)
        if next_ms is None:
            return SWEEP_SECONDS
        # A turn counts as due soon from `DUE_WITHIN_MS` before its time on.
        return min(SWEEP_SECONDS, (next_ms - soon_ms) / 1000)

    async def _expected(self, tx: Tx, signs: Iterable[TurnSign], now_ms: int) -> list[ExpectedTurn]:
        """Return the turns to expect in registered groups because of signs.

        Talk in a group counts only for a while after somebody called the assistant there.
        """
        expected = []
        for turn_sign in signs:
            group = await _group_of(tx, turn_sign)
            if group is None:
                continue
            asked_ms = (
                await turns.last_question_ms(tx, group.folder) if turn_sign.sign is Sign.TALK else now_ms
            )
            if asked_ms is not None and asked_ms >= now_ms - warm_start_policy.CALLED_WITHIN_MS:
                expected.append(ExpectedTurn(folder=group.folder, sign=turn_sign.sign))
        return expected

    async def _start(self, expected: list[ExpectedTurn], now_ms: int) -> None:
        """Start containers for the expected turns that the policy chooses and that could be answered now."""
        unsettled = await self._host.reader.read(turns.unsettled)
        chosen = warm_start_policy.choose(
            expected,
            unsettled,
            self._pool.live(),
            cap=self._cap(),
            max_ahead=self._host.settings.andy_foresight,
            unused_in_a_row=self._pool.foresight.unused_in_a_row,
            now_ms=now_ms,
        )
        for expected_turn in chosen:
            group = await self._answerable_group(expected_turn)
            if group is not None:
                self._pool.start_ahead(group, expected_turn.sign, is_isolated=expected_turn.is_isolated)

    async def _answerable_group(self, expected: ExpectedTurn) -> Group | None:
        """Return the group of an expected turn, if the turn could be answered now.

        None if the group is gone, if its budget is spent, if no model would answer the turn, if a setting is
        wrong, or if no Docker engine answers.
        """
        kind = TurnKind.TASK if expected.is_isolated else TurnKind.CHAT
        async with self._host.reader.reading() as tx:
            group = await groups.by_folder(tx, expected.folder)
            if group is None or await self._is_spent(tx, group, is_background=expected.sign is Sign.DUE):
                return None
        try:
            return group if await self._refusal(group, kind) is None else None
        # Nobody has asked anything yet, so no chat gets the reason. If the turn comes, its chat gets it then.
        except (SettingError, EngineGone) as error:
            log.info("start_ahead.left", group=expected.folder, reason=str(error))
            return None

    async def _is_spent(self, tx: Tx, group: Group, *, is_background: bool) -> bool:
        """Return whether a budget that counts for the group is spent.

        `is_background` says that nobody in the chat waits for the turn; further budgets count for such turns.
        """
        account = budget_sums.BudgetAccount(
            folder=group.folder, is_main=group.is_main, is_background=is_background
        )
        all_budgets, now_ms = await budgets.every(tx), self._host.clock.now_ms()
        zone = self._host.settings.zone
        return await budget_sums.spent_budget(tx, all_budgets, account, now_ms=now_ms, zone=zone) is not None


async def _group_of(tx: Tx, turn_sign: TurnSign) -> Group | None:
    """Return the group that a sign of a coming turn names by folder or chat; None if there is none."""
    if turn_sign.folder is not None:
        return await groups.by_folder(tx, turn_sign.folder)
    return await groups.by_jid(tx, turn_sign.jid) if turn_sign.jid is not None else None


async def _due(tx: Tx, *, before_ms: int) -> list[ExpectedTurn]:
    """Return the turns to expect because a scheduled task, or an agent's own waking, is due by `before_ms`.

    A task with a check is left out: its check decides without an agent whether there is a turn.
    """
    due_tasks = [
        ExpectedTurn(folder=task.folder, sign=Sign.DUE, is_isolated=task.context_mode is ContextMode.ISOLATED)
        for task in await tasks.due(tx, before_ms)
        if task.check is None
    ]
    wakes = [folder for folder, at_ms in await _wakes(tx) if at_ms <= before_ms]
    return due_tasks + [ExpectedTurn(folder=folder, sign=Sign.DUE) for folder in wakes]


async def _next_due_ms(tx: Tx, *, after_ms: int) -> int | None:
    """Return when the next turn after `after_ms` is due: of a scheduled task, or as an agent's own waking.

    Both times are in epoch milliseconds; None if nothing is due.
    """
    task_ms = await tasks.next_due_ms(tx, after_ms=after_ms)
    wakes = [at_ms for _, at_ms in await _wakes(tx) if at_ms > after_ms]
    return min([*wakes, *([] if task_ms is None else [task_ms])], default=None)


async def _wakes(tx: Tx) -> list[tuple[Folder, int]]:
    """Return each group whose agent will wake by itself, with the next time of that in epoch milliseconds.

    Groups whose agent does not wake by itself, or is paused, are left out.
    """
    return [
        (loop.folder, loop.next_wake_ms)
        for loop in await loops.alive(tx)
        if loop.next_wake_ms is not None and loop.status is not LoopStatus.PAUSED
    ]
