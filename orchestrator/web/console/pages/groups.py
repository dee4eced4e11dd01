"""Groups: the chats that were seen, those that have an agent, and what each agent may use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pydantic import ValidationError
from starlette.responses import Response

from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.groups import changes
from orchestrator.groups.registration import Registration
from orchestrator.groups.settings import ConfigRefused
from orchestrator.reports import groups as group_reports
from orchestrator.store import chats, group_changes, groups
from orchestrator.store.group_changes import GroupChange, GroupPart
from orchestrator.web.api.groups import FurtherChat
from orchestrator.web.console.forms import SentForm, typed
from orchestrator.web.console.page import Page, View


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


async def add_chat(view: View, form: SentForm) -> Response:
    """Give a group one more chat, or have one of its chats be told what nobody asked for."""
    folder = view.given("folder")
    try:
        wish = FurtherChat(jid=form.text("jid"), is_notify_chat=form.is_set("notify"))
        await view.api.groups.add_chat(folder, wish)
    except (BadRequest, ValidationError) as error:
        return await _show_group(view, error=str(error))
    return view.done(f"/groups/{folder}#chats", view.t(".chats_kept"))


async def join_group(view: View, form: SentForm) -> Response:
    """Add a chat that was seen to the group chosen beside it."""
    wish = FurtherChat(jid=form.text("jid"))
    found = await view.api.groups.add_chat(form.text("folder"), wish)
    return view.done(f"/groups/{found['folder']}#chats", view.t(".chats_kept"))


async def remove_chat(view: View, form: SentForm) -> Response:
    folder = view.given("folder")
    found = await view.api.groups.remove_chat(folder, form.text("jid"))
    return view.done(f"/groups/{folder}#chats", str(found["text"]))


async def show_group(view: View) -> Response:
    return await _show_group(view)


async def change_settings(view: View, form: SentForm) -> Response:
    return await _change(view, form, GroupPart.SETTINGS)


async def change_memory(view: View, form: SentForm) -> Response:
    return await _change(view, form, GroupPart.MEMORY)


async def _change(view: View, form: SentForm, part: GroupPart) -> Response:
    """Show what a change does; make it once it is sent again with `sure`, if nobody changed it meanwhile."""
    folder, text = view.given("folder"), form.raw("text")
    home = view.web.host.home.root

    def check(now: str) -> None:
        form.check_unchanged({part.value: now})

    try:
        if not form.is_set("sure"):
            async with view.web.host.reader.reading() as tx:
                now = await changes.current(tx, home, folder, part)
            check(now)
            after = changes.checked(part, text)
            if after == now:
                return view.done(f"/groups/{folder}", view.t(".same"))
            return await _show_diff(view, part, now, after)
        undoes = form.text("undoes")
        async with view.web.host.database.transaction() as tx:
            await changes.apply(
                tx,
                home,
                folder,
                part,
                text,
                check=check,
                by=view.signed_in.session.browser,
                now_ms=view.now_ms,
                undoes=int(undoes[:15]) if undoes.isascii() and undoes.isdigit() else None,
            )
    except (ConfigRefused, changes.GroupChangeRefused) as error:
        return await _show_group(view, error=str(error), texts={part: text})
    if part is GroupPart.SETTINGS:
        await view.api.groups.configured(folder)
    return view.done(f"/groups/{folder}", view.t(f".kept_{part.value}"))


async def show_change(view: View) -> Response:
    """Show what one change did, and what putting back what was before it would do now."""
    async with view.web.host.reader.reading() as tx:
        group = await groups.known(tx, view.given("folder"))
        change = await group_changes.get(tx, group.folder, int(view.given("number")))
        now = await changes.current(tx, view.web.host.home.root, group.folder, change.part)
    return await _show_diff(view, change.part, now, change.before, change=change)


async def _show_diff(
    view: View, part: GroupPart, now: str, after: str, *, change: GroupChange | None = None
) -> Response:
    return view.render(
        "groups_change.html",
        folder=view.given("folder"),
        part=part.value,
        now=now,
        after=after,
        lines=await asyncio.to_thread(changes.diff, now, after),
        change=change,
        did=await asyncio.to_thread(changes.diff, change.before, change.after) if change else [],
    )


async def remove(view: View, _: SentForm) -> Response:
    found = await view.api.groups.unregister(view.given("folder"))
    return view.done("/groups", str(found["text"]))


async def _show(view: View, *, error: str = "", values: SentForm | None = None) -> Response:
    async with view.web.host.reader.reading() as tx:
        rows = await group_reports.group_rows(tx)
        seen = [one for one in await group_reports.chat_rows(tx) if one["group"] is None]
    given = typed(values, "folder", "jid", "name", "trigger")
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


async def _show_group(
    view: View, *, error: str = "", texts: Mapping[GroupPart, str] | None = None
) -> Response:
    """Show a group with its settings and memory; `texts` are what was typed and refused."""
    folder, home = view.given("folder"), view.web.host.home.root
    async with view.web.host.reader.reading() as tx:
        known = await groups.known(tx, folder)
        group = group_reports.group_row(known)
        its_chats = await chats.of_group(tx, known)
        free = [one for one in await group_reports.chat_rows(tx) if one["group"] is None]
        now = {part: await changes.current(tx, home, folder, part) for part in GroupPart}
        changed = await group_reports.change_rows(tx, folder)
    return view.render(
        "groups_one.html",
        status=422 if error else 200,
        group=group,
        parts=[
            {"name": part.value, "now": text, "typed": (texts or {}).get(part, text)}
            for part, text in now.items()
        ],
        changed=changed,
        chats=its_chats,
        free=free,
        error=error,
    )


PAGE = Page(
    name="groups",
    order=50,
    shows={
        "/groups": show,
        "/groups/{folder}": show_group,
        "/groups/{folder}/changes/{number:number}": show_change,
    },
    changes={
        "/groups": register,
        "/groups/{folder}/settings": change_settings,
        "/groups/{folder}/memory": change_memory,
        "/groups/join": join_group,
        "/groups/{folder}/chats": add_chat,
        "/groups/{folder}/chats/remove": remove_chat,
        "/groups/{folder}/remove": remove,
    },
)
