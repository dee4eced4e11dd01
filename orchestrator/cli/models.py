"""`andy models`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from cyclopts import App, Parameter

from orchestrator.cli.exit_codes import FAILED, UsageError
from orchestrator.cli.options import GroupOption, HomeOption, JsonOption, read, show

if TYPE_CHECKING:
    from orchestrator.domain.model_services import ModelService
    from orchestrator.proxies.model.abilities import AbilityFinding
    from orchestrator.proxies.model.credentials import CredentialSource
    from orchestrator.store.database import Tx

models_app = App(name="models")
COMMAND_LINE = "the command line"
Kind = Literal[
    "anthropic",
    "llama.cpp",
    "ollama",
    "vllm",
    "sglang",
    "lmstudio",
    "openrouter",
    "deepseek",
    "moonshot",
    "zai",
    "gateway",
]


class AbilityView(TypedDict):
    """The result of one test of a model service, as `--json` prints it."""

    name: str
    """The ability that was tested."""
    is_there: bool
    detail: str


@models_app.command
def add(
    name: Annotated[str, Parameter(help="Your name for the service, such as local.")],
    url: Annotated[
        str | None,
        Parameter(help="The service's address, to which /v1/messages is added. [that of its kind]"),
    ] = None,
    /,
    *,
    kind: Annotated[Kind | None, Parameter(help="The kind of the service. [NAME, if that is a kind]")] = None,
    model: Annotated[
        str | None, Parameter(help="The model to use if a choice names only the service.")
    ] = None,
    key_env: Annotated[
        str | None, Parameter(help="The name under which .env has its key. [that of its kind]")
    ] = None,
    window: Annotated[int | None, Parameter(help="Tokens of the model's context window.")] = None,
    price: Annotated[
        str | None, Parameter(help="Dollars for a million tokens, in and out: 0.6,2.5. [0 without a key]")
    ] = None,
    first_byte_seconds: Annotated[
        int | None, Parameter(help="Seconds that it may take to start an answer. [depends on its address]")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Add a service that speaks Anthropic's Messages API, by a name; its key stays in .env.

    Adding a service again replaces all its values. Test it with 'andy models test NAME' before you choose it.

    Example: `andy models add local --kind llama.cpp --model qwen3 --window 32768`

    Example: `andy models add openrouter --model qwen/qwen3-coder --price 0.3,1.2`
    """
    from orchestrator.cli import terminal
    from orchestrator.domain.model_services import PRESETS
    from orchestrator.reports import models

    service = models.service_of(
        name,
        kind=kind,
        url=url,
        model=model,
        key_env=key_env,
        window=window,
        price=price,
        first_byte_seconds=first_byte_seconds,
    )
    # Before the change, which must not be made if .env cannot be read.
    lacks_key = service.key_env is not None and not _has_key(home, service.key_env)
    asyncio.run(terminal.change(home, lambda tx, now_ms: models.add(tx, service, now_ms=now_ms)))
    print(f"The service '{name}' ({PRESETS[service.kind].title}) is at {service.url}.")
    if lacks_key:
        print(f"Put its key into .env: {service.key_env}=…")
    print(f"Next: andy models test {name}")


@models_app.command(name="list")
def list_services(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the services, what they can do, and what they are used for. Works with Andy down.

    Example: `andy models list`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import models
    from orchestrator.store.settings import model_services

    services, source = terminal.read(home, model_services.every), _credentials(home)
    # Before the call of `read`, which prints: an unreadable `.env` is an error.
    has_key = {
        service.key_env: source.is_usable(service.key_env)
        for service in services
        if service.key_env is not None
    }
    settings = terminal.settings_to_show(terminal.home_of(home))
    read(
        home,
        lambda tx: models.rows(tx, lambda name: has_key.get(name, False), settings=settings),
        models.lines,
        as_json=as_json,
    )


@models_app.command(name="test")
def ask_for_abilities(
    name: Annotated[str, Parameter(help="The service, by its name in 'andy models list'.")],
    /,
    *,
    model: Annotated[str | None, Parameter(help="The model to test. [the service's own]")] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> int:
    """Test a service for text, streams, tool calls, images, token counts and its window.

    If it answers, the result for its own model, or for any if it has none, is stored: later requests leave
    out features that it lacks. The test costs about a thousand tokens.

    Example: `andy models test local`
    """
    from orchestrator.cli import terminal
    from orchestrator.domain.failures import ModelError
    from orchestrator.proxies.model.abilities import abilities_of
    from orchestrator.reports import models
    from orchestrator.store.settings import model_services

    service = terminal.read(home, lambda tx: model_services.by_name(tx, name))
    if service is None:
        raise UsageError(f"There is no model service '{name}': see 'andy models list'.")
    tested_model = model or service.model
    if tested_model is None:
        raise UsageError(f"Say which model '{name}' is asked for: andy models test {name} --model …")
    findings = asyncio.run(_test_service(home, service, tested_model))
    # The first finding is whether the service answers a message at all; if not, nothing is stored. Abilities
    # are stored for the service's own model, or for any if it has none: another model may have others.
    if findings[0].is_there and service.model in (None, tested_model):
        found_abilities = abilities_of(findings)
        window = next((finding.tokens for finding in findings if finding.tokens), None)
        asyncio.run(
            terminal.change(
                home,
                lambda tx, now_ms: models.note_abilities(
                    tx, name, found_abilities, window=window, now_ms=now_ms
                ),
            )
        )
    rows = [
        AbilityView(name=finding.name, is_there=finding.is_there, detail=finding.detail)
        for finding in findings
    ]
    show(rows, lambda shown_rows: [_finding_line(row) for row in shown_rows], as_json=as_json)
    if findings[0].is_there:
        return 0
    if findings[0].error is ModelError.OUTAGE:
        print(
            f"Check that '{name}' runs at {service.url}; "
            f"'andy models add {name} URL …' adds it again, with another address.",
            file=sys.stderr,
        )
    return FAILED


@models_app.command
def use(
    model: Annotated[str, Parameter(help="SERVICE/MODEL, such as local/qwen3; or default, to clear it.")],
    /,
    group: GroupOption = None,
    *,
    work: Annotated[
        Literal["all", "tasks", "worker", "summaries"],
        Parameter(
            name="--for", help="The kind of work; all means chats and all work without a choice of its own."
        ),
    ] = "all",
    home: HomeOption = None,
) -> None:
    """Choose the model for all groups or for one, and for a kind of work, from the next turn on.

    Example: `andy models use local/qwen3 --group family`

    Example: `andy models use openrouter/qwen/qwen3-coder --for worker`
    """
    from orchestrator.cli import terminal
    from orchestrator.domain.model_services import WorkKind
    from orchestrator.groups import model_choices
    from orchestrator.store.settings.model_services import ChosenModel

    chosen = None if model == model_choices.CLEARED else model
    has_gateway = terminal.has_gateway(home)

    async def act(tx: Tx, now_ms: int) -> None:
        """Store `chosen` for the group or, without a group, for all; a `chosen` of None clears it."""
        if group is not None:
            await model_choices.choose_for_group(
                tx, group, WorkKind(work), chosen, has_gateway=has_gateway, by=COMMAND_LINE, now_ms=now_ms
            )
            return
        choices = [] if chosen is None else [ChosenModel(WorkKind(work), chosen)]
        await model_choices.choose(tx, WorkKind(work), choices, has_gateway=has_gateway, now_ms=now_ms)

    asyncio.run(terminal.change(home, act))
    print(model_choices.outcome_text(chosen, group, WorkKind(work)))


@models_app.command
def fallback(
    models: Annotated[
        tuple[str, ...],
        Parameter(help="SERVICE/MODEL, in the order of use; without any, there is no fallback.", negative=""),
    ] = (),
    /,
    *,
    even_if_dearer: Annotated[
        bool,
        Parameter(negative="", help="Use a fallback even if it costs more than the model that it replaces."),
    ] = False,
    home: HomeOption = None,
) -> None:
    """Set the models that answer while the chosen service does not, from the next turn on.

    One that costs more, or whose price is not known, is used only with --even-if-dearer.

    Example: `andy models fallback local/qwen3 openrouter/qwen/qwen3-coder`
    """
    from orchestrator.cli import terminal
    from orchestrator.domain.model_services import WorkKind
    from orchestrator.groups import model_choices
    from orchestrator.store.settings.model_services import ChosenModel

    chosen = [ChosenModel(WorkKind.FALLBACK, model, even_if_dearer) for model in models]
    has_gateway = terminal.has_gateway(home)

    async def act(tx: Tx, now_ms: int) -> None:
        """Replace the stored list of models that answer while the chosen service does not."""
        await model_choices.choose(tx, WorkKind.FALLBACK, chosen, has_gateway=has_gateway, now_ms=now_ms)

    asyncio.run(terminal.change(home, act))
    print(f"While a chosen service does not answer: {', then '.join(models) or 'nobody else answers'}.")


@models_app.command
def remove(
    name: Annotated[str, Parameter(help="The service, by its name in 'andy models list'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Remove a service that is not chosen for any work. Its key in .env stays.

    Example: `andy models remove local`
    """
    from orchestrator.cli import terminal
    from orchestrator.reports import models

    settings = terminal.settings_of(terminal.home_of(home))
    asyncio.run(
        terminal.change(home, lambda tx, now_ms: models.remove(tx, name, settings=settings, now_ms=now_ms))
    )
    print(f"The service '{name}' is removed.")


async def _test_service(home: Path | None, service: ModelService, model: str) -> list[AbilityFinding]:
    """Send a model service short requests for a model; return a finding for each of its abilities."""
    from orchestrator.proxies.model import abilities

    return await abilities.examine_service(_credentials(home), service, model)


def _finding_line(row: AbilityView) -> str:
    """Return a finding about an ability of a model service as one line of text."""
    return f"{'✓' if row['is_there'] else '✗'} {row['name']:9} {row['detail']}"


def _has_key(home: Path | None, name: str) -> bool:
    """Return whether `.env` or the environment has a usable value under a name. Blocks."""
    return _credentials(home).is_usable(name)


def _credentials(home: Path | None) -> CredentialSource:
    """Return the reader of keys and passwords in a home's `.env` and in the environment."""
    import os

    from orchestrator.cli import terminal
    from orchestrator.proxies.model.credentials import CredentialSource

    return CredentialSource(terminal.home_of(home).root, os.environ)
