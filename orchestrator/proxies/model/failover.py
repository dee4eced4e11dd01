"""Have turns go on at another service when theirs does not answer, and bring the first back when it does.

A turn leaves a service by what it met itself. All turns leave it only once the host has met the fault with a
request of its own: a container could provoke one. The host asks such a service again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

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
from orchestrator.store import turn_moves, turn_outages
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

PROBE_EVERY_SECONDS = 30.0
PATIENCE_MS = 5_000
"""So long a turn stays at a service that is overloaded or has trouble of its own: that may pass at once."""
TRIES = 3
"""Answers of that kind in one run after which it stays no longer."""
MAX_REMEMBERED = 1_000
_OF_THE_REQUEST = (ModelError.OTHER, ModelError.UNKNOWN_MODEL)
"""Errors of a service that answers, if not this request."""

Probe = Callable[[str, str | None], Awaitable[Answered]]
"""Ask a service for one word, of a model or of its own."""


class Failover:
    """Judges what services answer, and keeps in the router which of them are down. Rows are the truth."""

    def __init__(
        self,
        database: Database,
        router: ModelRouter,
        *,
        clock: Clock,
        probe: Probe,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called after a turn has moved, or a service has come back."""
        self._database = database
        self._router = router
        self._clock = clock
        self._probe = probe
        self._on_change = on_change
        self._tries: Counter[RunId] = Counter()
        self._suspects: dict[str, str | None] = {}
        """Services to be asked now, each with the model that a turn asked there."""
        self._models: dict[str, str | None] = {}
        """The model that is asked for at each service that is down."""
        self._wakeup = Wakeup()

    async def load(self) -> None:
        """Load what an earlier process left; what was down then is asked at once."""
        async with self._database.reading() as tx:
            self._router.left = await turn_moves.of_unsettled(tx)
            found = await turn_moves.outages(tx)
        self._router.down = {one.service for one in found}
        self._suspects = {one.service: None for one in found}
        self._wakeup.set()

    async def run(self) -> None:
        """Ask services that are down or suspected, at once and then every half a minute."""
        while True:
            await self._wakeup.wait(at_most_seconds=PROBE_EVERY_SECONDS if self._router.down else None)
            await self.look()

    async def judge(self, identity: RunIdentity, answered: Answered) -> bool:
        """Return whether the turn of a run leaves its service for another, by how that has answered."""
        if answered.error is None:
            del self._tries[identity.run_id]
            return False
        if not identity.may_move or identity.turn_id is None or not self._is_enough(identity, answered):
            return False
        service, now_ms = identity.service_name, self._clock.now_ms()
        self._router.left.setdefault(identity.turn_id, set()).add(service)
        if len(self._router.left) > MAX_REMEMBERED:
            del self._router.left[next(iter(self._router.left))]
        async with self._database.transaction() as tx:
            await turn_moves.leave(
                tx, identity.turn_id, service, run_id=identity.run_id, cause=answered.error, now_ms=now_ms
            )
            # It waits for nothing any more.
            await turn_outages.end(tx, identity.turn_id, Outage.MODEL)
        log.warning(
            "turn.leaves_service",
            turn=identity.turn_id,
            service=service,
            cause=answered.error.value,
            status=answered.status,
        )
        self.suspect(service, identity.model)
        return True

    def suspect(self, service: str, model: str | None) -> None:
        """Have a service asked soon, by the host itself, whether it answers."""
        self._suspects.setdefault(service, model)
        self._wakeup.set()

    async def look(self) -> None:
        """Ask once each service that is down or suspected."""
        suspects, self._suspects = self._suspects, {}
        for service in sorted(suspects.keys() | self._router.down):
            model = suspects.get(service) or self._models.get(service)
            answered = await self._probe(service, model)
            error = answered.error
            log.info("service.probed", service=service, status=answered.status, error=error and error.value)
            if error is None or error in _OF_THE_REQUEST:
                await self._note_up(service)
            if error is ModelError.UNKNOWN_MODEL and suspects.get(service) is not None:
                await self.note_down(service, error, status=answered.status, model=model)
            elif error is not None and error not in _OF_THE_REQUEST:
                self._models[service] = model
                await self.note_down(service, error, status=answered.status, model=model)

    async def note_down(
        self, service: str, cause: ModelError, *, status: int | None, model: str | None = None
    ) -> None:
        """Have all turns ask others from now on, and notify the owner once, with the fix.

        A model that is not known concerns who asks for it alone: the service answers others.
        """
        if cause is not ModelError.UNKNOWN_MODEL:
            self._router.down.add(service)
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            is_news = cause is ModelError.UNKNOWN_MODEL or await turn_moves.begin_outage(
                tx, service, cause=cause, status=status, now_ms=now_ms
            )
            if is_news:
                setting = self._setting_of(service)
                text = failures.stand_in_notice(service, cause, setting=setting, model=model, status=status)
                about = (
                    f"service:{service}"
                    if cause is ModelError.UNKNOWN_MODEL
                    else f"service:{service}:{now_ms}"
                )
                await owner.notify(tx, text, about=about, now_ms=now_ms)
        self._on_change()

    async def _note_up(self, service: str) -> None:
        if service not in self._router.down:
            return
        self._router.down.discard(service)
        self._models.pop(service, None)
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as tx:
            if await turn_moves.end_outage(tx, service, now_ms=now_ms):
                text = f"✅ The model service '{service}' answers again: it is asked from the next turn on."
                await owner.notify(tx, text, about=f"service:{service}:{now_ms}", now_ms=now_ms)
        log.info("service.answers_again", service=service)
        self._on_change()

    def _setting_of(self, service: str) -> str | None:
        if service == OF_DOTENV:
            return None
        found = self._router.catalog.service(service)
        return found.key_env if found is not None else None

    def _is_enough(self, identity: RunIdentity, answered: Answered) -> bool:
        """Return whether a turn has waited long enough for a service that answered like this."""
        match answered.error:
            case ModelError.SLOW | ModelError.OTHER:
                return False
            case ModelError.OUTAGE if answered.status is not None and answered.status >= 400:
                self._tries[identity.run_id] += 1
                waited_ms = answered.waited_ms + answered.retry_after_ms
                return self._tries[identity.run_id] >= TRIES or waited_ms >= PATIENCE_MS
            case _:
                return True
