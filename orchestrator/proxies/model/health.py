"""Track whether the model service answers: its refusals, its outages, and the turns they concern.

A container could provoke a refusal that is its own request's fault. So a fault that stops other turns, too,
must be one that the host has met with its own request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.wakeups import Wakeup
from orchestrator.domain import failures
from orchestrator.domain.errors import SettingError
from orchestrator.domain.failures import MAX_OUTAGE_MS, TOO_LONG, ModelError, Outage
from orchestrator.domain.values import Folder, TurnId, TurnKind
from orchestrator.groups import owner
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.exchange import Answered, RunIdentity
from orchestrator.store.database import Database, Tx
from orchestrator.store.runs import model_refusals, turn_outages
from orchestrator.store.runs.model_refusals import OWN_CHOICE, ModelRefusal

log = structlog.get_logger(__name__)

PROBE_EVERY_MS = 60_000
LOOK_SECONDS = 5.0
"""Seconds that a turn waits for the host's own request before it may be refused:
all other turns wait behind it.
"""
_FOR_THE_TURN = "the model service refuses its questions."

ModelOf = Callable[[Folder, TurnKind | None], Awaitable[str | None]]
"""Returns the model that is set for a group's turns of a kind; None when their agent chooses."""
Probe = Callable[[str | None], Awaitable[Answered]]
"""Requests one word from the model service, from a given model or any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """The settings that decide the service's answer; a change is noticed at once. It contains no secret."""

    setting: str | None
    fingerprint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probed:
    """The host's own last request."""

    key: _Key
    model: str | None
    at_ms: int


_WITHOUT_KEY = (ModelError.NO_KEY, ModelError.KEY_UNREADABLE)
"""Causes that end once a key can be read, without a request to the service."""


class ModelHealth:
    """Judges every answer of the model service. The stored rows count; present refusals are
    cached in memory.
    """

    def __init__(
        self,
        database: Database,
        *,
        source: CredentialSource,
        clock: Clock,
        model_of: ModelOf,
        probe: Probe,
        on_recovery: Callable[[Tx, ModelRefusal], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        """Set up the tracking.

        `on_recovery` is called in the transaction that ends a refusal; `on_change` after a chat starts to
        wait, or no longer has to.
        """
        self._database = database
        self._source = source
        self._clock = clock
        self._model_of = model_of
        self._probe = probe
        self._on_recovery = on_recovery
        self._on_change = on_change
        self._open: list[ModelRefusal] = []
        self._troubled: set[TurnId] = set()
        self._refused_key: _Key | None = None
        self._own_choice: str | None = None
        """The model that an agent chose itself and that was last refused."""
        self._probed: _Probed | None = None
        self._probing = asyncio.Lock()
        self._wakeup = Wakeup()
        self.accepted_ms: int | None = None
        """When the model last answered since the host's start."""

    async def load(self) -> None:
        """Load an earlier process's refusals. The key may have changed since: the first turn tests again."""
        async with self._database.reading() as tx:
            self._open = await model_refusals.open_ones(tx)
            self._troubled = await turn_outages.of_model(tx)

    async def run(self) -> None:
        """Probe the service each minute while it refuses something, to notice the end without a turn."""
        while True:
            is_refused = bool(self._open)
            await self._wakeup.wait(at_most_seconds=PROBE_EVERY_MS / 1000 if is_refused else None)
            if is_refused:
                await self._look_again()

    @property
    def refusals(self) -> list[ModelRefusal]:
        """Return the present refusals; none once the key has changed, since the new one
        was not refused yet.
        """
        return list(self._open) if self._refused_key in (None, self._key()) else []

    async def refusal(self, model: str | None) -> ModelRefusal | None:
        """Return why a turn for a model would be refused now, or None. May probe the service first."""
        if (problem := await asyncio.to_thread(self._key_problem)) is not None:
            await self._begin(problem, None, status=None)
        elif self._blocking(model) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._look_again()
        return self._blocking(model)

    async def judge(self, identity: RunIdentity, answered: Answered) -> bool:
        """Record how the service answered a run's request. Return whether a retry helps."""
        error = answered.error
        if error is None:
            await self._record_answer(identity)
            return True
        if error is ModelError.SLOW:
            await self._record_slowness(identity, answered)
            return True
        if error is ModelError.OUTAGE:
            return await self._record_outage(identity, answered)
        if error.is_permanent:
            await self._record_refusal(identity, answered)
            return False
        return True

    # The service answers

    async def _record_answer(self, identity: RunIdentity) -> None:
        self.accepted_ms = self._clock.now_ms()
        await self.end_outage(identity)
        if self._open:
            model = await self._model_of(identity.folder, identity.kind)
            await self._end([one for one in self._open if one.model in (None, OWN_CHOICE, model)])

    async def end_outage(self, identity: RunIdentity) -> None:
        """Record that a turn got its answer, from whichever service: its earlier outage no longer counts."""
        if identity.turn_id in self._troubled and identity.turn_id is not None:
            self._troubled.discard(identity.turn_id)
            async with self._database.transaction() as tx:
                await turn_outages.end(tx, identity.turn_id, Outage.MODEL)
                await turn_outages.lift_stop(tx, identity.turn_id, turn_outages.REFUSED)

    # It refuses

    async def _record_refusal(self, identity: RunIdentity, answered: Answered) -> None:
        """Stop the turn if the host meets the same refusal, or cannot tell which model was requested."""
        error, model = answered.error, await self._model_of(identity.folder, identity.kind)
        assert error is not None
        # No model is set here, so the agent chose this one: the refusal blocks no other turn.
        if error is ModelError.UNKNOWN_MODEL and model is None:
            self._own_choice = answered.model
            await self._begin(error, OWN_CHOICE, status=answered.status)
        elif not await self._is_confirmed(error, model):
            log.warning("model.refused_one", group=identity.folder, error=error.value, status=answered.status)
            return
        if identity.turn_id is not None:
            self._troubled.add(identity.turn_id)
            async with self._database.transaction() as tx:
                await turn_outages.note_stop(
                    tx,
                    identity.turn_id,
                    code=turn_outages.REFUSED,
                    reason=_FOR_THE_TURN,
                    now_ms=self._clock.now_ms(),
                )

    async def _is_confirmed(self, error: ModelError, model: str | None) -> bool:
        if self._blocking(model) is None:
            await self._look(model)
        found = self._blocking(model)
        return found is not None and (found.model is None or error is ModelError.UNKNOWN_MODEL)

    async def _look_again(self) -> None:
        """Probe once for each refused model, or for any, unless that was just done."""
        if await asyncio.to_thread(self._key_problem) is None:
            await self._end([one for one in self._open if one.cause in _WITHOUT_KEY])
        models = {one.model for one in self._open if one.cause not in _WITHOUT_KEY}
        if self._own_choice is None:
            models.discard(OWN_CHOICE)  # refused before this host started: the next question names the model
        for model in sorted(models, key=str):
            await self._look(model)

    async def _look(self, model: str | None) -> None:
        """Send the host's own request, at most once a minute with the same key, and record the result.

        `model` is the one in a refusal: a model, `OWN_CHOICE`, or None for any.
        """
        async with self._probing:
            key, now_ms = await asyncio.to_thread(self._key), self._clock.now_ms()
            last = self._probed
            is_fresh = last is not None and 0 <= now_ms - last.at_ms < PROBE_EVERY_MS
            if key is None or (is_fresh and last is not None and (last.key, last.model) == (key, model)):
                return
            self._probed = _Probed(key=key, model=model, at_ms=now_ms)  # also if nobody waits for the end
            answered = await self._probe(self._own_choice if model == OWN_CHOICE else model)
            error = answered.error
            log.info("model.probed", model=model, status=answered.status, error=error and error.value)
            if error is ModelError.OUTAGE:
                return
            # The service judges the model only after it has accepted the key: refusals of the key are over.
            if error is ModelError.UNKNOWN_MODEL:
                await self._end([one for one in self._open if one.model is None])
                if model:
                    await self._begin(error, model, status=answered.status)
            elif error is not None and error.is_permanent:
                await self._begin(error, None, status=answered.status)
            else:
                self.accepted_ms = now_ms
                await self._end([one for one in self._open if one.model in (None, model)])

    # It is down

    async def _record_slowness(self, identity: RunIdentity, answered: Answered) -> None:
        """Record since when a turn waits for the first byte of an answer, which may still come."""
        if identity.turn_id is None:
            return
        since_ms = self._clock.now_ms() - answered.duration_ms
        async with self._database.transaction() as tx:
            await turn_outages.begin(tx, identity.turn_id, Outage.MODEL, since_ms=since_ms)
        self._troubled.add(identity.turn_id)
        log.warning("model.slow", group=identity.folder, turn=identity.turn_id)
        self._on_change()

    async def _record_outage(self, identity: RunIdentity, answered: Answered) -> bool:
        """Record since when the turn meets the outage; return False when it has lasted too long, or will."""
        turn_id, now_ms = identity.turn_id, self._clock.now_ms()
        if turn_id is None:
            return True
        async with self._database.transaction() as tx:
            since_ms = await turn_outages.begin(
                tx, turn_id, Outage.MODEL, since_ms=now_ms - answered.duration_ms
            )
            is_over = now_ms + answered.retry_after_ms - since_ms >= MAX_OUTAGE_MS
            if is_over:
                reason = TOO_LONG[Outage.MODEL] if not answered.retry_after_ms else _limit_reached(answered)
                await turn_outages.note_stop(
                    tx, turn_id, code=turn_outages.OUTAGE, reason=reason, now_ms=now_ms
                )
        if turn_id not in self._troubled:
            self._troubled.add(turn_id)
            log.warning("model.outage", group=identity.folder, turn=turn_id, status=answered.status)
        self._on_change()
        return not is_over

    # Rows

    def _blocking(self, model: str | None) -> ModelRefusal | None:
        return next((one for one in self._open if one.blocks(model)), None)

    def _key_problem(self) -> ModelError | None:
        """Return why no request could have a key now, or None when one is set. Blocks as `_key` does."""
        try:
            self._source.upstream()
            return ModelError.NO_KEY if self._source.current() is None else None
        except SettingError:
            return ModelError.KEY_UNREADABLE

    def _key(self) -> _Key | None:
        """Return the present key, None without one. Blocks for a `stat`, or for reading the file."""
        try:
            found = self._source.current()
            upstream = self._source.upstream()
        except SettingError:
            return None  # `andy status` reports the fault
        return (
            None if found is None else _Key(setting=found.setting, fingerprint=hash((found.secret, upstream)))
        )

    async def _begin(self, cause: ModelError, model: str | None, *, status: int | None) -> None:
        key = await asyncio.to_thread(self._key)
        self._refused_key = key
        if any(one.cause is cause and one.model == model for one in self._open):
            return
        async with self._database.transaction() as tx:
            setting = key.setting if key else None
            now_ms = self._clock.now_ms()
            await model_refusals.begin(
                tx, cause=cause, model=model, setting=setting, status=status, now_ms=now_ms
            )
            self._open = await model_refusals.open_ones(tx)
        log.error("model.refused", cause=cause.value, model=model, status=status, setting=setting)
        self._wakeup.set()

    async def _end(self, over: list[ModelRefusal]) -> None:
        if not over:
            return
        async with self._database.transaction() as tx:
            ids = {one.id for one in over}
            for one in await model_refusals.open_ones(tx):  # the owner may have been notified meanwhile
                if one.id in ids:
                    await model_refusals.end(tx, one.id, now_ms=self._clock.now_ms())
                    await self._on_recovery(tx, one)
            self._open = await model_refusals.open_ones(tx)
        log.info("model.answers_again", causes=[one.cause.value for one in over])
        self._on_change()


def _limit_reached(answered: Answered) -> str:
    minutes = -(-answered.retry_after_ms // 60_000)
    return f"my model has reached its limit and answers again in {minutes} minutes."


async def notify_recovery(tx: Tx, refusal: ModelRefusal, *, now_ms: int) -> None:
    """Notify the owner that a refusal has ended, if they were notified of it."""
    if refusal.notified_ms is not None:
        await owner.notify(tx, failures.WORKS_AGAIN, about=f"model-refusal:{refusal.id}", now_ms=now_ms)
