"""Choose the service and the model for a turn: by its group and kind of work, and
by which service answers now.

The owner's choices are cached in memory, and read again before each turn. A run uses one service for its
whole life: a choice here applies to the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from orchestrator.domain.errors import SettingError
from orchestrator.domain.model_services import (
    CLAUDE_NAMES,
    OF_DOTENV,
    ModelChoice,
    ModelService,
    ServicePrice,
    WorkKind,
    read_choice,
)
from orchestrator.domain.values import TurnId, TurnKind
from orchestrator.groups.settings import GroupConfig
from orchestrator.home.settings import Settings
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.token_usage import Prices, per_million
from orchestrator.store.database import Database, Tx
from orchestrator.store.settings import model_services
from orchestrator.store.settings.model_services import ChosenModel

MAX_REMEMBERED = 1_000
"""Turns whose left services are stored in memory; the oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class ModelCatalog:
    """The owner's services and choices, as last read."""

    services: tuple[ModelService, ...] = ()
    choices: tuple[ChosenModel, ...] = ()

    def service(self, name: str | None) -> ModelService | None:
        """Return the added service with this name; None for the service of `.env`, and for a removed one."""
        return next((service for service in self.services if service.name == name), None)

    def chosen(self, work: WorkKind) -> str | None:
        """Return the model that the owner chose for a kind of work in all groups; None if there is none."""
        return next((choice.model for choice in self.choices if choice.work is work), None)

    def fallbacks(self) -> list[ChosenModel]:
        """Return the owner's choices for when a service does not answer, in the order to try them."""
        return [choice for choice in self.choices if choice.work is WorkKind.FALLBACK]


async def read_catalog(tx: Tx) -> ModelCatalog:
    """Return the owner's services and choices as they are stored."""
    return ModelCatalog(tuple(await model_services.every(tx)), tuple(await model_services.choices(tx)))


def chosen_model(
    catalog: ModelCatalog, config: GroupConfig, kind: TurnKind | str, *, is_isolated: bool, settings: Settings
) -> ModelChoice:
    """Return the service and the model that are chosen for a group's turn, whether or not it answers. Pure.

    A choice for the kind of work counts before one for all work. For each of them, the group's choice counts
    first, then the owner's for all groups, then the setting, if there is one. A task in its group's
    conversation counts as a chat, because it continues the conversation's session; `is_isolated` says that it
    is outside of the conversation.
    """
    work = _work_of(kind, is_isolated=is_isolated)
    model_for_kind = None
    if work is not WorkKind.ALL:
        model_for_kind = config.models.get(work.value) or catalog.chosen(work)  # type: ignore[call-overload]
        model_for_kind = model_for_kind or (settings.agents_worker_model if work is WorkKind.WORKER else None)
    text = model_for_kind or config.model or catalog.chosen(WorkKind.ALL) or settings.andy_model
    return read_choice(text, catalog.services)


def _work_of(kind: TurnKind | str, *, is_isolated: bool) -> WorkKind:
    """Return the kind of work under which the owner chooses the model for a turn.

    `is_isolated` says whether the turn is outside of the group's conversation.
    """
    if kind == TurnKind.WORKER:
        return WorkKind.WORKER
    return WorkKind.TASKS if kind == TurnKind.TASK and is_isolated else WorkKind.ALL


def prices_of(settings: Settings) -> Prices:
    """Return the prices by which costs are estimated: those of the settings, then the built-in list's."""
    own_prices = {
        name: per_million(**price.model_dump()) for name, price in (settings.andy_prices or {}).items()
    }
    return Prices(own_prices, search_usd=settings.andy_search_price)


def price_of(catalog: ModelCatalog, choice: ModelChoice, prices: Prices) -> ServicePrice | None:
    """Return the price of a service's model in USD per million tokens; None if it is not known. Pure."""
    service = catalog.service(choice.service)
    if service is not None and not has_list_price(service):
        # The owner's price is for the service's own model; another that is chosen may cost more. Without an
        # owner's price, `known_price` is zero or None, whichever model is chosen.
        is_price_of_other_model = (
            service.price is not None
            and service.model is not None
            and choice.model not in (None, service.model)
        )
        return None if is_price_of_other_model else service.known_price
    # In billionths of a dollar per token, which are thousandths of a dollar per million tokens.
    listed = prices.of(choice.model)
    return None if listed is None else ServicePrice(listed.input / 1000, listed.output / 1000)


def has_list_price(service: ModelService | None) -> bool:
    """Return whether a service has the list prices of Anthropic; None is the service of `.env`."""
    return service is None or (service.kind == "anthropic" and service.price is None)


def is_cheap_enough(price: ServicePrice | None, other: ServicePrice | None) -> bool:
    """Return whether `price` is known and not above `other`. Pure.

    None is an unknown price. A price of zero is never above another price, not even above an unknown one.
    """
    if price is None:
        return False
    if price.input == price.output == 0:
        return True
    return other is not None and price.input <= other.input and price.output <= other.output


class ModelRouter:
    """Chooses the model service for each turn: one of the owner's choices that is not known to be down."""

    def __init__(
        self, database: Database, *, settings: Settings, credentials: CredentialSource, prices: Prices
    ) -> None:
        """Start with an empty catalog, until `refresh` reads the stored one from `database`.

        `credentials` has the keys of the services; `prices` decide which model is cheaper.
        """
        self._database = database
        self._settings = settings
        self._credentials = credentials
        self._prices = prices
        self.catalog = ModelCatalog()
        self.left: dict[TurnId, set[str]] = {}
        """The services that turns have left, because they did not answer."""
        self.recovered: dict[TurnId, set[str]] = {}
        """The services among `left` that have answered the host itself since."""
        self.down: set[str] = set()
        """The services that do not answer the host itself."""
        self.on_unusable: Callable[[str], None] = _ignore
        """Called with a chosen service that has no key, if another answers in its place."""

    async def refresh(self) -> None:
        """Read the owner's present services and choices from the store: two small tables."""
        self.catalog = await self._database.read(read_catalog)

    def chosen_model(self, config: GroupConfig, kind: TurnKind | str, *, is_isolated: bool) -> ModelChoice:
        """Return the service and model that are chosen for a group's turns of a kind, answering or not.

        `is_isolated` says whether the turns are outside of the group's conversation.
        """
        return chosen_model(self.catalog, config, kind, is_isolated=is_isolated, settings=self._settings)

    def for_summaries(self, config: GroupConfig, model: str) -> list[ModelChoice]:
        """Return the services and models that may write a group's summary, in the order to try them.

        `model` is the model of the settings, which is used if nobody chose another. Services that do not
        answer now are left out; if none answers, only the first choice is returned.
        """
        work = WorkKind.SUMMARIES
        chosen_text = config.models.get("summaries") or self.catalog.chosen(work) or model
        first_choice = read_choice(chosen_text, self.catalog.services)
        candidates = [first_choice, *self.stand_ins(first_choice)]
        return [candidate for candidate in candidates if self._answers_now(candidate)] or candidates[:1]

    def candidates(
        self, config: GroupConfig, kind: TurnKind | str, *, is_isolated: bool
    ) -> list[ModelChoice]:
        """Return the services and models for a turn: the owner's choice, then those of `stand_ins` in order.

        `is_isolated` says whether the turn is outside of the group's conversation.
        """
        first_choice = self.chosen_model(config, kind, is_isolated=is_isolated)
        return [first_choice, *self.stand_ins(first_choice)]

    def stand_ins(self, first_choice: ModelChoice) -> list[ModelChoice]:
        """Return the choices that may be used if the first one's service does not answer, in order.

        They are the owner's fallbacks at other services with a key. One that costs more than the first choice
        is left out, unless the owner allows that.
        """
        price = price_of(self.catalog, first_choice, self._prices)
        # The service of `.env` may be a gateway with other models, which Anthropic's service does not have.
        is_claude = first_choice.model is None or first_choice.model.startswith(CLAUDE_NAMES)
        accepted: list[ModelChoice] = []
        for fallback in self.catalog.fallbacks():
            choice = read_choice(fallback.model, self.catalog.services)
            both_have_list_prices = is_claude and all(
                has_list_price(self.catalog.service(compared.service)) for compared in (first_choice, choice)
            )
            if both_have_list_prices and choice.model is None:
                # Both count as Anthropic's service, with two keys. The default model of the fallback could be
                # more expensive than the model of the first choice.
                choice = replace(choice, model=first_choice.model)
            # A second model at the same service would fail together with the first.
            is_other = choice.service not in {
                first_choice.service,
                *(earlier.service for earlier in accepted),
            }
            is_allowed = (
                fallback.may_be_dearer
                or (both_have_list_prices and choice.model == first_choice.model)
                or is_cheap_enough(price_of(self.catalog, choice, self._prices), price)
            )
            if is_other and is_allowed and self.is_usable(choice.service):
                accepted.append(choice)
        return accepted

    def choose(
        self, config: GroupConfig, kind: TurnKind | str, *, is_isolated: bool, turn_id: TurnId | None = None
    ) -> ModelChoice:
        """Return the service and model for a turn now.

        If no service answers, the owner's choice is returned, so that people read why it fails. A turn
        returns to a service that it has left only if no other answers; then it counts as not left. If
        another service is used because the owner's choice has no key, `on_unusable` is called, unless that
        choice is known to be down. `turn_id` is None for a turn that is not stored yet.
        """
        # No turn has the id 0, which stands for a turn without one.
        left_services = self.left.get(turn_id or TurnId(0), set())
        candidates = self.candidates(config, kind, is_isolated=is_isolated)
        chosen = self.first_that_answers(candidates, left_services)
        # The proxy refuses a turn at a service that it has left.
        left_services.discard(chosen.service)
        first_service = candidates[0].service
        if first_service not in {chosen.service, *self.down} and not self.is_usable(first_service):
            self.on_unusable(first_service)
        return chosen

    def first_that_answers(
        self, candidates: Sequence[ModelChoice], left_services: Collection[str] = ()
    ) -> ModelChoice:
        """Return the first candidate whose service answers and is not among `left_services`.

        If there is none, return the first whose service answers; else the first whose service is not among
        `left_services`; else the first of all. `left_services` are those that the turn has left, because they
        did not answer it.
        """
        answering = [candidate for candidate in candidates if self._answers_now(candidate)]
        not_left = [candidate for candidate in candidates if candidate.service not in left_services]
        answering_and_not_left = [candidate for candidate in answering if candidate in not_left]
        # A service that answers comes before one that was not left: a turn rather returns than waits.
        best_first = [*answering_and_not_left, *answering, *not_left, *candidates]
        return best_first[0]

    def next_after(
        self,
        service: str,
        config: GroupConfig,
        kind: TurnKind | str,
        *,
        is_isolated: bool,
        turn_id: TurnId | None,
    ) -> ModelChoice | None:
        """Return the service and model that could continue a turn which leaves `service`; None if none could.

        Services that the turn has not left come first, then those that have answered the host after the turn
        left them.
        """
        # No turn has the id 0, which stands for a turn without one.
        left_services = self.left.get(turn_id or TurnId(0), ())
        recovered_services = self.recovered.get(turn_id or TurnId(0), ())
        candidates = self.candidates(config, kind, is_isolated=is_isolated)
        others = [
            candidate
            for candidate in candidates
            if candidate.service != service and self._answers_now(candidate)
        ]
        best_first = [
            *(candidate for candidate in others if candidate.service not in left_services),
            *(candidate for candidate in others if candidate.service in recovered_services),
        ]
        return best_first[0] if best_first else None

    def leave(self, turn_id: TurnId, service: str) -> None:
        """Note that a turn has left a service, so that `choose` avoids it.

        If the turn had left it before, and the service had answered the host since (`recovered`), that answer
        no longer counts.
        Of more than `MAX_REMEMBERED` such turns, the oldest is forgotten.
        """
        self.left.setdefault(turn_id, set()).add(service)
        self.recovered.get(turn_id, set()).discard(service)
        if len(self.left) > MAX_REMEMBERED:
            oldest = next(iter(self.left))
            del self.left[oldest]
            self.recovered.pop(oldest, None)

    def note_answer(self, service: str) -> None:
        """Record that a service has answered the host: turns that left it may return."""
        for turn_id, left_services in self.left.items():
            if service in left_services:
                self.recovered.setdefault(turn_id, set()).add(service)

    def other_service_answers(
        self, service: str, config: GroupConfig, kind: TurnKind | str, *, is_isolated: bool
    ) -> bool:
        """Return whether a turn could use another service than `service` that answers now.

        It may be one that the turn has moved away from because it did not answer. `is_isolated` says whether
        the turn is outside of its group's conversation: then another model may be set for it.
        """
        candidates = self.candidates(config, kind, is_isolated=is_isolated)
        return any(candidate.service != service and self._answers_now(candidate) for candidate in candidates)

    def has_stand_in(self, service: str) -> bool:
        """Return whether another service than `service` answers now.

        Only these services are considered: the one that is chosen for all groups, and the owner's fallbacks.
        """
        texts = [self.catalog.chosen(WorkKind.ALL) or self._settings.andy_model]
        texts += [fallback.model for fallback in self.catalog.fallbacks()]
        choices = [read_choice(text, self.catalog.services) for text in texts]
        return any(choice.service != service and self._answers_now(choice) for choice in choices)

    def known_models(self, name: str) -> list[str]:
        """Return the models that the service `name` is known to have, each once.

        They are those that the settings or the owner have chosen there, then the one that the service was
        added with.
        """
        texts = [self._settings.andy_model, *(stored_choice.model for stored_choice in self.catalog.choices)]
        chosen = [read_choice(text, self.catalog.services) for text in texts]
        service = self.catalog.service(name)
        own_models = [service.model] if service is not None else []
        models = [*(choice.model for choice in chosen if choice.service == name), *own_models]
        return list(dict.fromkeys(model for model in models if model is not None))

    def _answers_now(self, choice: ModelChoice) -> bool:
        """Return whether a choice's service has a key and is not known to be down."""
        return choice.service not in self.down and self.is_usable(choice.service)

    def is_usable(self, name: str) -> bool:
        """Return whether a service exists and has the key that it needs. May block for a file."""
        try:
            if name == OF_DOTENV:
                return self._credentials.current() is not None
            service = self.catalog.service(name)
            return service is not None and self._credentials.credential_of(service) is not None
        except SettingError:
            return False

    def has_gateway(self) -> bool:
        """Return whether the service of `.env` is a gateway, not Anthropic's own. May block for a file."""
        return self._credentials.has_gateway()

    def provider_of(self, name: str) -> str:
        """Return a text that identifies the service `name` with its address, such as `name@host/path`.

        A session of the Claude CLI continues only at the service with the same text. For the service of
        `.env` it is the address alone. Raises `SettingError` if that address is unusable.
        """
        from urllib.parse import urlsplit

        service = self.catalog.service(name)
        address = urlsplit(self._credentials.upstream() if service is None else service.url)
        host_and_path = address.netloc + address.path.rstrip("/")
        return host_and_path if service is None else f"{name}@{host_and_path}"


def _ignore(_: str) -> None:
    """Do nothing, in place of `on_unusable` until it is set."""
