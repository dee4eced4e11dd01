"""Choose models from the chat of main, among the services that the owner has added; only main may."""

from __future__ import annotations

from agent_runner.wire.mailbox import ChooseModel
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.model_services import OF_DOTENV, WorkKind
from orchestrator.groups import model_choices
from orchestrator.ipc.command_context import CommandCaller, CommandResult, refused
from orchestrator.store.database import Tx
from orchestrator.store.settings import model_services
from orchestrator.store.settings.model_services import ChosenModel

FROM_MAIN = "main"
ALLOWED = (WorkKind.ALL, WorkKind.TASKS, WorkKind.WORKER, WorkKind.SUMMARIES)
"""The kinds of work that a chat may choose for. Only the owner sets fallbacks and their prices."""


async def choose_model(tx: Tx, caller: CommandCaller, command: ChooseModel) -> CommandResult:
    """Choose the model for a kind of work, for one group or for all; without a model, list what there is.

    A model of the service of `.env`, or of a service that the owner has added, can be chosen. A special word
    clears the choice.
    """
    if command.model is None:
        return await _list_choices(tx)
    if command.work not in {*ALLOWED}:
        return refused("bad_request", f"'{command.work}' is none of {', '.join(ALLOWED)}.")
    work = WorkKind(command.work)
    model = None if command.model == model_choices.CLEARED else command.model
    has_gateway = caller.has_gateway()  # then the models of the service of `.env` may have any names
    try:
        if command.target_folder is not None:
            await model_choices.choose_for_group(
                tx,
                command.target_folder,
                work,
                model,
                has_gateway=has_gateway,
                by=FROM_MAIN,
                now_ms=caller.now_ms,
            )
        else:
            chosen = [] if model is None else [ChosenModel(work, model)]
            await model_choices.choose(tx, work, chosen, has_gateway=has_gateway, now_ms=caller.now_ms)
    except BadRequest as error:
        return refused(error.code, str(error))
    return CommandResult(
        text=model_choices.outcome_text(model, command.target_folder, work),
        data={"model": model, "work": work.value, "group": command.target_folder},
    )


async def _list_choices(tx: Tx) -> CommandResult:
    """Return the model services that can be chosen, and the models that are chosen for each kind of work.

    The service of `.env` comes first. The others are shown as `NAME/MODEL`, with the service's own model, or
    with the word MODEL if it has none.
    """
    services = await model_services.every(tx)
    chosen = await model_services.choices(tx)
    return CommandResult(
        text="The services that the owner has added, and what is chosen.",
        data={
            "services": [OF_DOTENV, *(f"{service.name}/{service.model or 'MODEL'}" for service in services)],
            "chosen": [{"work": choice.work.value, "model": choice.model} for choice in chosen],
        },
    )
