"""Mind: what a group remembers: its summary, plans, decisions, snapshots, and notices to itself."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from orchestrator.context.context_manager import ContextManager
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import TurnKind
from orchestrator.reports import context, notices
from orchestrator.store import groups, sessions, turns
from orchestrator.web.console.forms import SentForm
from orchestrator.web.console.page import Page, View

MAX_NOTICES = 100
TOLD = ("turn.answered", "conversation.restored", "group.configured")
NOTICED = ("notice.*", "command.notify_self", "command.acknowledge_notification", "command.cancel_notice")


class StillAnswering(BadRequest):
    """The group's agent is answering just now: wait until it has, and try again."""

    code = "still_answering"
    http_status = 409


async def show(view: View) -> Response:
    """Show what is kept of one group; of the first one where none is named."""
    async with view.web.host.reader.reading() as tx:
        every = await groups.every(tx)
        group = await groups.known(tx, view.query("group") or (every[0].folder if every else "main"))
        noticed = await notices.every(tx, group.folder, with_over=False, limit=MAX_NOTICES)
    manager = view.web.contexts.manager(group.folder)
    kept, snapshots = await asyncio.to_thread(_kept, manager, view.now_ms)
    return view.render(
        "mind.html",
        group=group.folder,
        choices=[(one.folder, one.folder) for one in every],
        zone=view.web.host.zone_of(group),
        memory=kept["context"]["memory"],
        summary=kept["context"]["conversation"]["running_summary"],
        stats=kept["context"]["stats"],
        mended=kept["mended"],
        plans=kept["workflow"]["plans"],
        snapshots=snapshots,
        notices=noticed,
        says=view.console.catalogue.has,
    )


async def forget(view: View, form: SentForm) -> Response:
    """Forget what is kept of a group's conversation, and have its agent begin anew with nothing."""
    async with view.web.host.database.transaction() as tx:
        group = await groups.known(tx, view.given("folder"))
        turn = await turns.running_of(tx, group.folder)
        if turn is not None and turn.kind is not TurnKind.WORKER and not turn.is_isolated:
            raise StillAnswering
        manager = view.web.contexts.manager(group.folder)
    now_ms, with_plans = view.now_ms, form.is_set("with_plans")
    await asyncio.to_thread(manager.reset, now_ms=now_ms, with_plans=with_plans)
    async with view.web.host.database.transaction() as tx:
        await sessions.forget(tx, group.folder, now_ms=now_ms)
        # Containers end that began before their group was configured: they live in the old session.
        await groups.set_config(tx, group.folder, group.container_config, now_ms=now_ms)
    await view.api.groups.configured(group.folder)
    return view.done(f"/mind?group={group.folder}", view.t(".forgotten"))


async def pin(view: View, form: SentForm) -> Response:
    """Keep a snapshot for good, or no longer than others where it was kept so."""
    async with view.web.host.reader.reading() as tx:
        group = await groups.known(tx, view.given("folder"))
    manager, name = view.web.contexts.manager(group.folder), view.given("name")
    await asyncio.to_thread(manager.unpin if form.is_set("off") else manager.pin, name)
    done = view.t(".did_unpin") if form.is_set("off") else view.t(".did_pin")
    return view.done(f"/mind?group={group.folder}", done)


async def cancel_notice(view: View, _: SentForm) -> Response:
    folder = view.given("folder")
    async with view.web.host.database.transaction() as tx:
        await notices.cancel(tx, folder, view.given("id"), now_ms=view.now_ms)
    return view.done(f"/mind?group={folder}", view.t(".did_cancel"))


def _kept(manager: ContextManager, now_ms: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what is kept and its snapshots, newest first. Blocks."""
    mended = context.bad_files(manager.files.path)
    kept = context.show(manager.files.folder, manager.load(now_ms=now_ms), mended)
    return kept, context.snapshot_rows(manager.snapshots())


PAGE = Page(
    name="mind",
    order=60,
    shows={"/mind": show},
    changes={
        "/mind/{folder}/forget": forget,
        "/mind/{folder}/snapshots/{name}/pin": pin,
        "/mind/{folder}/notices/{id}/cancel": cancel_notice,
    },
    live={"memory": TOLD, "notices": (*NOTICED, *TOLD)},
)
