"""Track whether the model service answers: its refusals, its outages, and the turns they concern.

A container could provoke a refusal that is its own request's fault. So a refusal stops other turns only after
the host has met it with a request of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

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
"""Milliseconds between two of the host's own requests for the same model."""
MAX_PROBE_WAIT_SECONDS = 5.0
"""Seconds that a turn waits for the host's own request before the turn may be refused. Meanwhile all other
turns wait behind it.
"""
_REFUSED_REASON = "the model service refuses its questions."

ModelOf = Callable[[Folder, TurnKind | None], Awaitable[str | None]]
"""Returns the model that is set for a group's turns of this kind; None when their agent chooses."""
Probe = Callable[[str | None], Awaitable[Answered]]
"""Requests one word from the model service: from the model of this name, or from any for None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """The settings that decide the service's answer; a change is noticed at once. It contains no secret."""

    setting: str | None
    """The name of the setting with the credential."""
    fingerprint: int
    """A hash of the credential and the service's URL, valid in this process only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastProbe:
    """The host's own last request for one model."""

    key: _Key
    at_ms: int
    is_cut_off: bool = False
    """Whether the turn that waited for its answer has stopped waiting."""


_KEY_CAUSES = (ModelError.NO_KEY, ModelError.KEY_UNREADABLE)
"""Causes that end once a key can be read, without a request to the service."""


class ModelHealth:
    """Judges each answer of the model service that `.env` names, and stores its refusals and outages.

    A refusal is a lasting error, such as a rejected key. An outage belongs to one turn: the time in which its
    service does not answer it. Outages of turns at another service are stored here, too. Present refusals are
    also cached in memory.
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
        """Build it without refusals; `load` adds the stored ones.

        Args:
            database: stores refusals and outages.
            source: returns the service's credential.
            clock: the host's clock.
            model_of: returns the model that is set for a group's turns, which may depend on the turns' kind.
            probe: sends the host's own request to the service.
            on_recovery: called with each refusal that ends, in the transaction that ends it.
            on_change: called after a turn has met an outage, and after refusals have ended.
        """
        self._database = database
        self._source = source
        self._clock = clock
        self._model_of = model_of
        self._probe = probe
        self._on_recovery = on_recovery
        self._on_change = on_change
        self._open_refusals: list[ModelRefusal] = []
        """The refusals that have not ended."""
        self._waiting_turns: dict[TurnId, int] = {}
        """Turns that have met an outage or a refusal, and no answer since. For each, the steady time of that
        in milliseconds; for a turn that waited when this host started, the time of the start.
        """
        self._refused_key: _Key | None = None
        """The key with which the last refusal was met."""
        self._chosen_by_agent: str | None = None
        """The model that an agent chose itself and that was last refused."""
        self._choosing_turns: tuple[Folder, TurnKind | None] | None = None
        """The group of that agent, and the kind of the turn in which it chose."""
        self._last_probes: dict[str | None, _LastProbe] = {}
        """The host's last own request for each model, so that it is not repeated within a minute. The model
        is that of a refusal: a model, `OWN_CHOICE`, or None for any.
        """
        self._probing = asyncio.Lock()
        self._wakeup = Wakeup()
        self.accepted_ms: int | None = None
        """The time when a model last answered, in epoch milliseconds; None if none has since the start."""

    async def load(self) -> None:
        """Load the refusals and outages that an earlier process has stored.

        The key may have changed since, so the first turn makes the host test again.
        """
        async with self._database.reading() as tx:
            self._open_refusals = await model_refusals.unfinished(tx)
            waiting_turns = await turn_outages.of_model(tx)
        self._waiting_turns = dict.fromkeys(waiting_turns, self._clock.steady_ms())

    async def run(self) -> None:
        """Probe the service each minute while it refuses something, so that the end of a refusal is noticed.

        A refusal that begins while there is none is probed for the first time after a minute. One that begins
        beside another makes this probe at once.
        """
        while True:
            is_refused = bool(self._open_refusals)
            await self._wakeup.wait(at_most_seconds=PROBE_EVERY_MS / 1000 if is_refused else None)
            if is_refused:
                await self._probe_refused_models(awaits_answers=True)

    @property
    def refusals(self) -> list[ModelRefusal]:
        """Return the present refusals; none after the key was changed, as the new key was not refused yet.

        May block for the file of the key.
        """
        # `_refused_key` is None if there was no key, and while all refusals are from an earlier process.
        return list(self._open_refusals) if self._refused_key in (None, self._present_key()) else []

    async def refusal(self, model: str | None) -> ModelRefusal | None:
        """Return the refusal that a turn with this model would meet now, or None.

        While there is one, the service is first sent the host's own request, which may end it; the wait for
        that is limited to `MAX_PROBE_WAIT_SECONDS`. A missing key is recorded as a refusal.
        """
        if (problem := await asyncio.to_thread(self._key_problem)) is not None:
            await self._begin_refusal(problem, None, status=None)
        elif self._blocking_refusal(model) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_PROBE_WAIT_SECONDS):
                    await self._probe_refused_models()
        return self._blocking_refusal(model)

    async def judge(self, identity: RunIdentity, answered: Answered) -> bool:
        """Record how the service answered a run's request.

        Return whether the container may send the same request again: False after a lasting refusal, and after
        an outage that has lasted too long.
        """
        error = answered.error
        if error is None:
            await self._record_answer(identity, answered.model)
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

    async def _record_answer(self, identity: RunIdentity, answering_model: str | None) -> None:
        """Record that, and when, the service answered a run's request for `answering_model`.

        This ends its turn's outage, the refusals of the model that answered, as far as names can be compared
        (`_may_be`), and those of all models. The refusal of a model that an agent chose itself ends with an
        answer of that model, or of the model that the owner has set since for such turns of the agent's
        group. After a restart of the host, an answer of any model ends it: nothing stores which model was
        refused, and this refusal blocks no turn.
        """
        self.accepted_ms = self._clock.now_ms()
        await self.end_outage(identity)
        if self._open_refusals:
            # Not always the one that answers: a running container may have the model that was set before, and
            # its agent may use another one for a part of its work.
            model = await self._model_of(identity.folder, identity.kind)
            answering = {None, answering_model}
            if model is not None and _may_be(model, answering_model or ""):
                answering.add(model)
            # By the kind, too: turns of workers may have a model of their own all the time.
            is_replaced = model is not None and (identity.folder, identity.kind) == self._choosing_turns
            if (is_replaced and model in answering) or self._chosen_by_agent in (None, answering_model):
                answering.add(OWN_CHOICE)
            await self._end_refusals(
                [refusal for refusal in self._open_refusals if refusal.model in answering]
            )

    async def end_outage(self, identity: RunIdentity) -> None:
        """Record that a run's turn got an answer, from any service: its outage and its refusal are over."""
        if identity.turn_id in self._waiting_turns and identity.turn_id is not None:
            async with self._database.transaction() as tx:
                await turn_outages.end(tx, identity.turn_id, Outage.MODEL)
                await turn_outages.lift_stop(tx, identity.turn_id, turn_outages.REFUSED)
            self._waiting_turns.pop(identity.turn_id, None)

    # It refuses

    async def _record_refusal(self, identity: RunIdentity, answered: Answered) -> None:
        """Record a lasting refusal that a run has met, and stop its turn, if the refusal is confirmed.

        It is confirmed if the host's own request meets it as well, which records it, or if it is recorded
        already. An unknown model that the agent chose itself needs no confirmation: it stops no other turn.
        """
        error = answered.error
        model = await self._model_of(identity.folder, identity.kind)
        assert error is not None
        # No model is set for the group, so the agent chose it: the refusal blocks no other turn.
        if error is ModelError.UNKNOWN_MODEL and model is None:
            self._chosen_by_agent, self._choosing_turns = answered.model, (identity.folder, identity.kind)
            await self._begin_refusal(error, OWN_CHOICE, status=answered.status)
        elif not await self._confirm_refusal(error, model):
            log.warning("model.refused_one", group=identity.folder, error=error.value, status=answered.status)
            return
        if identity.turn_id is not None:
            async with self._database.transaction() as tx:
                await turn_outages.note_stop(
                    tx,
                    identity.turn_id,
                    code=turn_outages.REFUSED,
                    reason=_REFUSED_REASON,
                    now_ms=self._clock.now_ms(),
                )
            # Only after the commit: an `end_outage` whose transaction came just before this one discards the
            # turn after that, so a turn added earlier would be lost, and its stop never be lifted.
            self._waiting_turns.setdefault(identity.turn_id, self._clock.steady_ms())

    async def _confirm_refusal(self, error: ModelError, model: str | None) -> bool:
        """Return whether the host's own request meets a refusal that explains a run's error, and record it.

        It is a refusal of all models or, if the error is an unknown model, a refusal of `model` alone.
        Without `model`, the request is for any model. If a refusal is recorded already, no request is sent.
        """
        if self._blocking_refusal(model) is None:
            await self._probe_model(model)
        refusal = self._blocking_refusal(model)
        return refusal is not None and (refusal.model is None or error is ModelError.UNKNOWN_MODEL)

    async def _probe_refused_models(self, *, awaits_answers: bool = False) -> None:
        """Test whether the recorded refusals still hold.

        Refusals for want of a key end if there is a key. For the others, the host's own request is sent for
        each refused model, at most once a minute. `awaits_answers` says that the caller waits for each answer
        however long it takes: a request that was cut off is then sent again, even within the minute.
        """
        if await asyncio.to_thread(self._key_problem) is None:
            await self._end_refusals(
                [refusal for refusal in self._open_refusals if refusal.cause in _KEY_CAUSES]
            )
        models = {refusal.model for refusal in self._open_refusals if refusal.cause not in _KEY_CAUSES}
        if self._chosen_by_agent is None:
            # `OWN_CHOICE` stands for a model that an agent chose itself. The refusal was recorded before this
            # host started, and which model it was is not stored, so it cannot be tested until an agent asks
            # for it again.
            models.discard(OWN_CHOICE)
        for model in sorted(models, key=str):  # None may be among them
            await self._probe_model(model, awaits_answers=awaits_answers)

    async def _probe_model(self, model: str | None, *, awaits_answers: bool = False) -> None:
        """Send the host's own request for a model, at most once a minute with the same key.

        `model` is the one that a refusal concerns: a model, `OWN_CHOICE` for one that an agent chose itself,
        or None for all models; then any is requested. The result is recorded, except for an outage. An answer
        that is no lasting refusal ends the refusals of `model` and of all models. An unknown model ends only
        the latter, and is recorded as a refusal of `model` if that is a name.

        If the caller stops waiting, the request is cut off, and `run` is woken to send it again. Only `run`
        may send it again within the minute, because it waits for the answer however long that takes
        (`awaits_answers`).
        """
        async with self._probing:
            key = await asyncio.to_thread(self._present_key)
            now_ms = self._clock.now_ms()
            if key is None or self._was_just_probed(key, model, now_ms=now_ms, awaits_answers=awaits_answers):
                return
            self._last_probes[model] = _LastProbe(key=key, at_ms=now_ms)
            try:
                answered = await self._probe(self._chosen_by_agent if model == OWN_CHOICE else model)
            except asyncio.CancelledError:
                # If `run` did not send it again, turns that come each minute would cut off every request to a
                # slow service, and its recovery would never be noticed.
                self._last_probes[model] = replace(self._last_probes[model], is_cut_off=True)
                self._wakeup.set()
                raise
            error = answered.error
            error_name = None if error is None else error.value
            log.info("model.probed", model=model, status=answered.status, error=error_name)
            if error is ModelError.OUTAGE:
                return
            # A service looks at the model only after it has accepted the key. So an unknown model shows that
            # the refusals of all models, such as for the key, are over.
            if error is ModelError.UNKNOWN_MODEL:
                await self._end_refusals(
                    [refusal for refusal in self._open_refusals if refusal.model is None]
                )
                # Not for any model (None), nor for the agent's own choice (an empty text): that refusal is
                # recorded already, as only a recorded one is probed.
                if model:
                    await self._begin_refusal(error, model, status=answered.status)
            elif error is not None and error.is_permanent:
                await self._begin_refusal(error, None, status=answered.status)
            else:
                self.accepted_ms = now_ms
                await self._end_refusals(
                    [refusal for refusal in self._open_refusals if refusal.model in (None, model)]
                )

    def _was_just_probed(self, key: _Key, model: str | None, *, now_ms: int, awaits_answers: bool) -> bool:
        """Return whether the last probe of this model was with the same key, less than a minute ago.

        A probe in the future, as after the clock was set back, does not count; nor does one that was cut off,
        if the caller never stops waiting (`awaits_answers`).
        """
        last_probe = self._last_probes.get(model)
        if last_probe is None or last_probe.key != key:
            return False
        if last_probe.is_cut_off and awaits_answers:
            return False
        return 0 <= now_ms - last_probe.at_ms < PROBE_EVERY_MS

    # It is down

    async def _record_slowness(self, identity: RunIdentity, pending: Answered) -> None:
        """Record that a turn waits long for the first byte of an answer, which may still come.

        The outage begins with the request: `pending`, which stands for the answer, has the time that it has
        waited so far. A run without a turn is not recorded.
        """
        if identity.turn_id is None:
            return
        since_ms = self._clock.now_ms() - pending.duration_ms
        async with self._database.transaction() as tx:
            await turn_outages.begin(tx, identity.turn_id, Outage.MODEL, since_ms=since_ms)
        self._waiting_turns.setdefault(identity.turn_id, self._clock.steady_ms() - pending.duration_ms)
        log.warning("model.slow", group=identity.folder, turn=identity.turn_id)
        self._on_change()

    async def _record_outage(self, identity: RunIdentity, answered: Answered) -> bool:
        """Record that a run's turn has met an outage, and return whether it may continue to wait.

        It may not if the outage has lasted `MAX_OUTAGE_MS`, or will have at the end of the pause that the
        service wants. Then the reason for stopping the turn is recorded. A run without a turn may always go
        on. Time in which the machine slept, or was off, does not count: nobody asked the service then.
        """
        turn_id = identity.turn_id
        now_ms = self._clock.now_ms()
        if turn_id is None:
            return True
        steady_ms = self._clock.steady_ms()
        met_ms = self._waiting_turns.get(turn_id)
        async with self._database.transaction() as tx:
            since_ms = await turn_outages.begin(
                tx,
                turn_id,
                Outage.MODEL,
                since_ms=now_ms - answered.duration_ms,
                earliest_ms=0 if met_ms is None else now_ms - (steady_ms - met_ms),
            )
            has_lasted_too_long = now_ms + answered.retry_after_ms - since_ms >= MAX_OUTAGE_MS
            if has_lasted_too_long:
                reason = _limit_reason(answered) if answered.retry_after_ms else TOO_LONG[Outage.MODEL]
                await turn_outages.note_stop(
                    tx, turn_id, code=turn_outages.OUTAGE, reason=reason, now_ms=now_ms
                )
        if turn_id not in self._waiting_turns:
            self._waiting_turns[turn_id] = steady_ms - answered.duration_ms
            log.warning("model.outage", group=identity.folder, turn=turn_id, status=answered.status)
        self._on_change()
        return not has_lasted_too_long

    # Rows

    def _blocking_refusal(self, model: str | None) -> ModelRefusal | None:
        """Return the first present refusal that stops turns with this model; None if there is none.

        A `model` of None stands for a model that the agent chooses.
        """
        return next((refusal for refusal in self._open_refusals if refusal.blocks(model)), None)

    def _key_problem(self) -> ModelError | None:
        """Return the error that the key or the service's URL has now, or None. May block for a file.

        It is `NO_KEY` if none is set, and `KEY_UNREADABLE` if a setting is unusable.
        """
        try:
            self._source.upstream()
            return ModelError.NO_KEY if self._source.current() is None else None
        except SettingError:
            return ModelError.KEY_UNREADABLE

    def _present_key(self) -> _Key | None:
        """Return the present key; None if none is set or it is unusable. May block for a file."""
        try:
            credential = self._source.current()
            upstream = self._source.upstream()
        except SettingError:
            return None  # `andy status` reports the fault
        if credential is None:
            return None
        return _Key(setting=credential.setting, fingerprint=hash((credential.secret, upstream)))

    async def _begin_refusal(self, cause: ModelError, model: str | None, *, status: int | None) -> None:
        """Store that the service refuses requests for this cause, unless that is stored already.

        In either case, the present key is noted as the one with which the last refusal was met.
        `model` is None if it refuses all of them. `status` is the HTTP status of its answer; None if there
        was no answer, as without a key.
        """
        key = await asyncio.to_thread(self._present_key)
        self._refused_key = key
        if any(refusal.cause is cause and refusal.model == model for refusal in self._open_refusals):
            return
        async with self._database.transaction() as tx:
            setting = key.setting if key else None
            now_ms = self._clock.now_ms()
            await model_refusals.begin(
                tx, cause=cause, model=model, setting=setting, status=status, now_ms=now_ms
            )
            self._open_refusals = await model_refusals.unfinished(tx)
        log.error("model.refused", cause=cause.value, model=model, status=status, setting=setting)
        self._wakeup.set()

    async def _end_refusals(self, ended: list[ModelRefusal]) -> None:
        """Store that these refusals have ended, and call `on_recovery` for each."""
        if not ended:
            return
        async with self._database.transaction() as tx:
            ids = {refusal.id for refusal in ended}
            # Read again from the store: the owner may have been notified of a refusal meanwhile.
            for refusal in await model_refusals.unfinished(tx):
                if refusal.id in ids:
                    await model_refusals.end(tx, refusal.id, now_ms=self._clock.now_ms())
                    await self._on_recovery(tx, refusal)
            self._open_refusals = await model_refusals.unfinished(tx)
        log.info("model.answers_again", causes=[refusal.cause.value for refusal in ended])
        self._on_change()


def _may_be(set_model: str, requested_model: str) -> bool:
    """Return whether an agent requests `requested_model` because the owner has set `set_model`.

    Only full names can be compared: for a short one such as `opus`, the CLI requests a full name. The part
    from `[` on selects a context size, as in `claude-sonnet-4-5[1m]`.
    """
    name = set_model.partition("[")[0]
    return not name.startswith("claude-") or name == requested_model.partition("[")[0]


def _limit_reason(answered: Answered) -> str:
    """Return the reason that finishes "I could not answer: …" when the service wants a long pause."""
    minutes = -(-answered.retry_after_ms // 60_000)  # rounded up
    return f"my model has reached its limit and answers again in {minutes} minutes."


async def notify_recovery(tx: Tx, refusal: ModelRefusal, *, now_ms: int) -> None:
    """Notify the owner that a refusal has ended, if they were notified of it."""
    if refusal.notified_ms is not None:
        await owner.notify(tx, failures.WORKS_AGAIN, about=f"model-refusal:{refusal.id}", now_ms=now_ms)
