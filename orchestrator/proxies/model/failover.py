"""Continue turns at another service when theirs does not answer, and return to it when it does.

A single turn leaves a service for faults it met itself. All turns leave only after the host has met the fault
with its own request, because a container could provoke one. The host tests such a service repeatedly.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.wakeups import Wakeup
from orchestrator.domain import failures
from orchestrator.domain.failures import ModelError, Outage
from orchestrator.domain.model_services import OF_DOTENV
from orchestrator.domain.values import RunId
from orchestrator.groups import owner
from orchestrator.proxies.model.exchange import Answered, RunIdentity
from orchestrator.proxies.model.routing import ModelRouter
from orchestrator.store.database import Database
from orchestrator.store.runs import turn_moves, turn_outages

log = structlog.get_logger(__name__)

PROBE_EVERY_SECONDS = 30.0
"""Seconds between two tests of a service that is down."""
MAX_WAIT_MS = 5_000
"""Milliseconds that a turn stays at a service that is overloaded or in trouble: that may pass soon."""
MAX_FAILED_TRIES = 3
"""Answers of a service in trouble, in one run, after which its turn leaves the service."""
_OF_THE_REQUEST = (ModelError.OTHER, ModelError.UNKNOWN_MODEL)
"""Errors of a service that answers, but not to this request."""
_OF_THE_SERVICE = (ModelError.OUTAGE, ModelError.FOREIGN)
"""Errors that a container's request is unlikely to provoke."""
QUIET_MS = 30 * 60_000
"""Milliseconds for which the owner is not notified again of a service that fails and recovers repeatedly."""
DAY_MS = 86_400_000

Probe = Callable[[str, str | None], Awaitable[Answered]]
"""Requests one word from a service, from a given model or its default."""


@dataclass(frozen=True, slots=True)
class _Alert:
    """A text to the owner that a service is down."""

    at_ms: int
    is_resolved: bool = False
    """Whether the owner was notified that it answers again."""


class Failover:
    """Judges the services' answers, and marks the services that are down in the router.

    Outages, and the services that turns have left, are stored, so that they still count after a restart.
    """

    def __init__(
        self,
        database: Database,
        router: ModelRouter,
        *,
        clock: Clock,
        probe: Probe,
        on_change: Callable[[], None],
    ) -> None:
        """Build it without outages; `load` adds the stored ones.

        Args:
            database: stores outages, and the services that turns have left.
            router: chooses services; it is updated with those that are down, and those that turns leave.
            clock: the host's clock.
            probe: sends the host's own request to a service.
            on_change: called after a service was found down, has recovered, or did not answer a turn.
        """
        self._database = database
        self._router = router
        router.on_unusable = self.suspect
        self._clock = clock
        self._probe = probe
        self._on_change = on_change
        self._failed_tries: Counter[RunId] = Counter()
        """The number of answers with an overload or fault of the service, by run, since the run's last good
        answer.
        """
        self._suspects: dict[str, str | None] = {}
        """Services to test now, each with the model that failed for a turn there; None if it is not known."""
        self._failed_models: dict[str, str | None] = {}
        """The model that each service which is down failed to answer the host with; it is requested again."""
        self._being_tested: set[str] = set()
        """Services that are being tested now."""
        self._causes_of_leaving: dict[str, ModelError] = {}
        """Services that a turn has left since the service was last tested, each with the cause."""
        self._last_alerts: dict[str, _Alert] = {}
        """The last text to the owner that a service is down, by service."""
        self._wakeup = Wakeup()

    async def load(self) -> None:
        """Load the outages, and the services that turns have left, from an earlier process.

        The services that were down are tested at once, with any model: which one failed is not stored.
        """
        async with self._database.reading() as tx:
            self._router.left = await turn_moves.services_left_by_turn(tx)
            outages = await turn_moves.outages(tx)
        self._router.down = {outage.service for outage in outages}
        self._last_alerts = {
            outage.service: _Alert(outage.notified_ms) for outage in outages if outage.notified_ms is not None
        }
        self._suspects = {outage.service: None for outage in outages}
        self._wakeup.set()

    async def run(self) -> None:
        """Test suspected services at once, and services that are down every `PROBE_EVERY_SECONDS`."""
        async with asyncio.TaskGroup() as group:
            while True:
                # A service that is tested now may turn out to be down.
                is_due = bool(self._router.down or self._being_tested)
                await self._wakeup.wait(at_most_seconds=PROBE_EVERY_SECONDS if is_due else None)
                self._start_tests(group)

    async def judge(self, identity: RunIdentity, answered: Answered) -> bool:
        """Decide whether a run's turn leaves its service for another because of the service's answer.

        Return True if it does, and record it. The host then tests the service soon, and also if the turn
        would leave but may move to no other. An answer without an error resets the count of the run's failed
        tries. A run without a turn stays.
        """
        if answered.error is None:
            # A `Counter` ignores a missing key here.
            del self._failed_tries[identity.run_id]
            return False
        if identity.turn_id is None or _is_side_model_unknown(identity, answered):
            return False
        # No other service answers, and the turn has left none to which it could return.
        if not identity.other_service_answers and identity.turn_id not in self._router.left:
            return False
        # A service that is overloaded for a moment gets some time.
        if not self._has_waited_enough(identity, answered):
            return False
        if not identity.may_move:
            # The turn has left every other service that answers, so it stays. If the host finds this service
            # down, the turn may return to one of the others.
            self.suspect(identity.service_name, identity.model)
            return False
        del self._failed_tries[identity.run_id]
        service = identity.service_name
        now_ms = self._clock.now_ms()
        self._router.leave(identity.turn_id, service)
        async with self._database.transaction() as tx:
            await turn_moves.leave(
                tx, identity.turn_id, service, run_id=identity.run_id, cause=answered.error, now_ms=now_ms
            )
            # The turn no longer waits for the service that it has left.
            await turn_outages.end(tx, identity.turn_id, Outage.MODEL)
        log.warning(
            "turn.leaves_service",
            turn=identity.turn_id,
            service=service,
            cause=answered.error.value,
            status=answered.status,
        )
        self._causes_of_leaving[service] = answered.error
        self.suspect(service, identity.model)
        return True

    def suspect(self, service: str, model: str | None = None) -> None:
        """Make `run` test soon whether a service answers.

        `model` is the model that failed; None if it is not known.
        """
        self._suspects.setdefault(service, model)
        self._wakeup.set()

    async def test_once(self) -> None:
        """Test each service that is down or suspected once, all concurrently."""
        async with asyncio.TaskGroup() as group:
            self._start_tests(group)

    def _start_tests(self, group: asyncio.TaskGroup) -> None:
        """Start a test of each service that is suspected or down, as a task of `group`.

        A service whose last test is still running is left out, as a test may take minutes.
        """
        for service in sorted(self._suspects.keys() | self._router.down):
            if service not in self._being_tested:
                self._being_tested.add(service)
                test = self._test(service, self._suspects.pop(service, None))
                group.create_task(test, name=f"probe-{service}")

    async def _test(self, service: str, suspected_model: str | None) -> None:
        """Test a service, and wake `run` to test it again if it was suspected meanwhile.

        `suspected_model` is the model that failed for a turn; None if it is not known.
        """
        try:
            await self._test_and_record(service, suspected_model)
        finally:
            self._being_tested.discard(service)
        if service in self._suspects:
            self._wakeup.set()

    async def _test_and_record(self, service: str, suspected_model: str | None) -> None:
        """Send the host's own request to a service, and record by the answer whether the service is down.

        An error that only concerns the request counts as an answer. An answer that is only slow changes
        nothing. The owner is notified if the host gets an answer where a turn got none, be it from another
        model of the service; else of an unknown model that a turn has met, or of a service that is down.

        `suspected_model` is the model that failed for a turn. If it is None, the request is for the model
        that failed in the last test of the service, or for any if none did.
        """
        model = suspected_model or self._failed_models.get(service)
        answered = await self._probe(service, model)
        error = answered.error
        error_name = None if error is None else error.value
        log.info("service.probed", service=service, status=answered.status, error=error_name)
        cause_of_leaving = self._causes_of_leaving.pop(service, None)
        if error is None:
            self._router.note_answer(service)
        # A slow answer may still come, and an error of the request shows that the service works.
        is_fault = error not in (None, ModelError.SLOW, *_OF_THE_REQUEST)
        if is_fault and await self._has_another_model(service, model):
            # Only one model fails behind a gateway that works: the service stays in use, and the owner reads
            # that turns left.
            await self._note_up(service)
            await self._notify_turns_left(service)
            return
        if error is None or error in _OF_THE_REQUEST:
            await self._note_up(service)
        if error is None and cause_of_leaving in _OF_THE_SERVICE:
            # The host gets an answer, though a turn got none.
            await self._notify_turns_left(service)
        elif error is ModelError.UNKNOWN_MODEL and suspected_model is not None:
            # For an unknown model, `note_down` only notifies the owner: the service stays in use.
            await self.note_down(service, error, status=answered.status, model=model)
        elif error is not None and is_fault:  # the first part is for the type checker
            self._failed_models[service] = model
            await self.note_down(service, error, status=answered.status, model=model)

    async def _has_another_model(self, service: str, model: str | None) -> bool:
        """Return whether a service that fails with `model` answers with another of its models.

        A gateway may do so. The service is sent a request with the first other model that is known. Return
        False if none is, or if `model` is None.
        """
        other_models = [
            known_model for known_model in self._router.known_models(service) if known_model != model
        ]
        return bool(model and other_models) and (await self._probe(service, other_models[0])).error is None

    async def note_down(
        self, service: str, cause: ModelError, *, status: int | None, model: str | None = None
    ) -> None:
        """Record that a service is down, so that all turns use others, and notify the owner with the fix.

        The owner is notified again only as `_is_alert_due` allows. If the cause is an unknown model, the
        service stays in use, because it answers requests for other models, and the owner is notified once a
        day.

        Args:
            service: the service's name.
            cause: the error that the host's own request has met.
            status: the HTTP status of the answer; None if none came.
            model: the model that was requested, if it is known.
        """
        now_ms = self._clock.now_ms()
        text = failures.stand_in_text(
            service,
            cause,
            setting=self._setting_of(service),
            model=model,
            status=status,
            has_stand_in=self._router.has_stand_in(service),
        )
        is_due = False
        async with self._database.transaction() as tx:
            if cause is ModelError.UNKNOWN_MODEL:
                await owner.notify(tx, text, about=f"service:{service}:{now_ms // DAY_MS}", now_ms=now_ms)
            else:
                self._router.down.add(service)
                await turn_moves.begin_outage(tx, service, cause=cause, status=status, now_ms=now_ms)
                is_due = self._is_alert_due(service, now_ms)
                if is_due:
                    await turn_moves.note_notified(tx, service, now_ms=now_ms)
                    await owner.notify(tx, text, about=f"service:{service}:{now_ms}", now_ms=now_ms)
        if is_due:  # only once it is stored: a text that is not stored is sent by the next test
            self._last_alerts[service] = _Alert(now_ms)
        self._on_change()

    def _is_alert_due(self, service: str, now_ms: int) -> bool:
        """Return whether the owner is due a text that a service is down.

        The first one is always due. After that, none is due until the owner was notified that the service
        answers again, nor for `QUIET_MS` after the last text, because a service may fail and recover often.
        """
        last = self._last_alerts.get(service)
        # A text with a later time is from before the clock was set back.
        return last is None or (last.is_resolved and not 0 <= now_ms - last.at_ms < QUIET_MS)

    async def _note_up(self, service: str) -> None:
        """Record that a service answers again, so that turns use it.

        The owner is notified if they were notified that it was down. Nothing happens if it was not down.
        """
        if service not in self._router.down:
            return
        now_ms = self._clock.now_ms()
        last_alert = self._last_alerts.get(service)
        # The owner needs no text about a service that they have removed.
        still_exists = service == OF_DOTENV or self._router.catalog.service(service) is not None
        async with self._database.transaction() as tx:
            has_ended = await turn_moves.end_outage(tx, service, now_ms=now_ms)
            is_due = has_ended and still_exists and last_alert is not None and not last_alert.is_resolved
            if is_due:
                text = f"✅ The model service '{service}' answers again: it is asked from the next turn on."
                await owner.notify(tx, text, about=f"service:{service}:{now_ms}", now_ms=now_ms)
        # Only once it is stored: until then the service counts as down, and is tested again.
        self._router.down.discard(service)
        self._failed_models.pop(service, None)
        if not still_exists:
            self._last_alerts.pop(service, None)
        elif is_due and last_alert is not None:
            self._last_alerts[service] = replace(last_alert, is_resolved=True)
        log.info("service.answers_again", service=service)
        self._on_change()

    async def _notify_turns_left(self, service: str) -> None:
        """Notify the owner, at most once a day, of a service that answers the host but not a turn."""
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            await owner.notify(
                tx,
                failures.broke_off_text(service),
                about=f"service:{service}:left:{now_ms // DAY_MS}",
                now_ms=now_ms,
            )
        self._on_change()

    def _setting_of(self, service: str) -> str | None:
        """Return the name of the setting with a service's key; None if it has none of its own."""
        if service == OF_DOTENV:
            return None
        stored = self._router.catalog.service(service)
        return stored.key_env if stored is not None else None

    def _has_waited_enough(self, identity: RunIdentity, answered: Answered) -> bool:
        """Return whether a turn has waited long enough for a service that answers with this error.

        Only a service that itself reports an overload or a fault gets some tries or seconds: each call counts
        such an answer as one failed try of the run. Always False for a slow answer and for a fault of the
        request; always True for any other error, also if no answer came.
        """
        match answered.error:
            # A slow answer may still come, and a faulty request would be refused elsewhere, too.
            case ModelError.SLOW | ModelError.OTHER:
                return False
            # The service itself reports an overload or a fault: that may pass in a moment.
            case ModelError.OUTAGE if answered.status is not None and answered.status >= 400:
                self._failed_tries[identity.run_id] += 1
                waited_ms = answered.waited_ms + answered.retry_after_ms
                return self._failed_tries[identity.run_id] >= MAX_FAILED_TRIES or waited_ms >= MAX_WAIT_MS
            case _:
                return True


def _is_side_model_unknown(identity: RunIdentity, answered: Answered) -> bool:
    """Return whether a service does not know the small model that the CLI uses for side work.

    Such a service may still know the turn's own model, and answer the turn. Always False if the turn's model
    is no full name, because then it is not known which model is the small one.
    """
    if answered.error is not ModelError.UNKNOWN_MODEL or answered.model is None:
        return False
    # The part from `[` on selects a context size, as in `claude-sonnet-4-5[1m]`.
    turn_model = (identity.model or "").partition("[")[0]
    requested_model = answered.model.partition("[")[0]
    # Only full names can be compared: for an alias such as `opus`, the CLI requests a full name.
    return turn_model.startswith("claude-") and requested_model != turn_model
