"""Groups: the chats that were seen, those that have an agent, and what each agent may use."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.groups import memory_templates, registration
from orchestrator.groups.registration import Registration
from orchestrator.reports import groups as group_reports
from orchestrator.store import groups
from orchestrator.web.console.forms import SentForm
from orchestrator.web.console.page import Page, View

MAX_MEMORY_CHARS = 20_000


class MemoryRefused(BadRequest):
    """The group's memory cannot be kept."""

    code = "bad_memory"


async def show(view: View) -> Response:
    return await _show(view)


async def register(view: View, form: SentForm) -> Response:
    """Give a chat an agent; what cannot be read is shown again with the reason."""
    try:
        wish = Registration(
            folder=form.text("folder"),
            jid=form.text("jid") or None,
            name=form.text("name") or None,
            trigger=form.text("trigger") or None,
            requires_trigger=not form.is_set("every"),
        )
        await view.api.groups.register(wish)
    except (AndyError, ValidationError) as error:
        return await _show(view, error=str(error), values=form)
    return view.done(f"/groups/{wish.folder}", view.t(".registered", folder=wish.folder))


async def show_group(view: View) -> Response:
    return await _show_group(view)


async def configure(view: View, form: SentForm) -> Response:
    """Replace a group's settings by those of the form, if nobody changed them meanwhile."""
    folder = view.given("folder")
    async with view.web.host.reader.reading() as tx:
        before = await group_reports.config_fields(tx, folder)
    form.check_unchanged({"settings": _json(before)})
    try:
        wanted = json.loads(form.text("settings") or "{}")
        if not isinstance(wanted, dict):
            raise BadRequest(view.t(".no_object"))
        changes = {**dict.fromkeys(before), **wanted}
        async with view.web.host.database.transaction() as tx:
            await registration.configure(tx, folder, changes, now_ms=view.now_ms)
    except (AndyError, ValueError) as error:
        return await _show_group(view, error=str(error), settings=form.raw("settings"))
    await view.api.groups.configured(folder)
    return view.done(f"/groups/{folder}", view.t(".configured"))


async def remember(view: View, form: SentForm) -> Response:
    """Replace a group's memory file, if neither its agent nor anybody else changed it meanwhile."""
    folder = view.given("folder")
    async with view.web.host.reader.reading() as tx:
        known = await groups.known(tx, folder)
    now = await asyncio.to_thread(_memory, view, known.folder)
    form.check_unchanged({"memory": now})
    text = form.raw("memory").replace("\r\n", "\n")
    if len(text) > MAX_MEMORY_CHARS:
        raise MemoryRefused(view.t(".memory_long", n=MAX_MEMORY_CHARS))
    await asyncio.to_thread(memory_templates.write_memory, view.web.host.home.root, known.folder, text)
    return view.done(f"/groups/{folder}", view.t(".remembered"))


async def remove(view: View, _: SentForm) -> Response:
    found = await view.api.groups.unregister(view.given("folder"))
    return view.done("/groups", str(found["text"]))


async def _show(view: View, *, error: str = "", values: SentForm | None = None) -> Response:
    async with view.web.host.reader.reading() as tx:
        rows = await group_reports.group_rows(tx)
        seen = [one for one in await group_reports.chat_rows(tx) if one["group"] is None]
    given = {name: values.raw(name) if values else "" for name in ("folder", "jid", "name", "trigger")}
    given["jid"] = given["jid"] or view.query("jid")
    given["name"] = given["name"] or view.query("name")
    return view.render(
        "groups.html",
        status=422 if error else 200,
        rows=rows,
        seen=seen,
        error=error,
        given=given,
        every=values is not None and values.is_set("every"),
    )


async def _show_group(view: View, *, error: str = "", settings: str | None = None) -> Response:
    folder = view.given("folder")
    async with view.web.host.reader.reading() as tx:
        group = group_reports.group_row(await groups.known(tx, folder))
        before = _json(await group_reports.config_fields(tx, folder))
    memory = await asyncio.to_thread(_memory, view, group["folder"])
    return view.render(
        "groups_one.html",
        status=422 if error else 200,
        group=group,
        before=before,
        settings=before if settings is None else settings,
        memory=memory,
        error=error,
    )


def _memory(view: View, folder: str) -> str:
    return memory_templates.own_text(view.web.host.home.root, folder, memory_templates.MEMORY) or ""


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, indent=2, sort_keys=True)


PAGE = Page(
    name="groups",
    order=30,
    shows={"/groups": show, "/groups/{folder}": show_group},
    changes={
        "/groups": register,
        "/groups/{folder}/settings": configure,
        "/groups/{folder}/memory": remember,
        "/groups/{folder}/remove": remove,
    },
)
