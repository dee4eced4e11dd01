"""To-dos and lists: what is done with them, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agent_runner.agents.offline.checklists import ChecklistFault, Checklists, Item, ListFault
from agent_runner.agents.offline.conversation import Option, RequestContext, ShownEntry
from agent_runner.agents.offline.intents import TODO, ParsedRequest
from agent_runner.agents.offline.wording import entries
from agent_runner.wire.times import Language

MAX_SHOWN_ITEMS = 100


class Lists:
    """Does what is wished with the files, in a thread, and says what came of it."""

    def __init__(self, checklists: Checklists) -> None:
        self._files = checklists

    async def act(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Do one thing with one list; which list, is asked where none is named or known."""
        if parsed.intent == "one_or_more":
            return self._one_or_more(parsed, context)
        name = parsed.slot("list")
        if parsed.slot("it") or not name:
            name = context.known.list or ("" if parsed.intent == "add_items" else TODO)
        if not name:
            items = ", ".join(parsed.slot("items").splitlines())
            return context.ask(parsed, "list", context.say("which_list", items=items))
        context.speak_of(list_name=name)
        try:
            return await asyncio.to_thread(self._act, parsed, name, context)
        except ListFault as error:
            return _fault(error.fault, parsed, name, context)
        except OSError as error:
            return context.say("disk", reason=error.strerror)

    async def shown(self, name: str, context: RequestContext) -> str:
        """Say what is on a list."""
        return await self.act(
            ParsedRequest(intent="show_list", language=context.language, slots={"list": name}), context
        )

    def _one_or_more(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Ask whether words with an "and" in them are one thing or several."""
        parts = parsed.slot("more").splitlines()
        whole, several = _add_wishes(parsed, parts)
        options = (
            Option(label=context.say("one", text=parsed.slot("one")), wish=whole),
            Option(label=context.say("several", text=" · ".join(parts)), wish=several),
        )
        return context.ask(parsed, "which", context.say("one_or_more", count=len(parts)), options)

    async def overview(self, parsed: ParsedRequest, context: RequestContext) -> str:
        """Name every list and how much of it is open."""
        try:
            return await asyncio.to_thread(self._overview, context)
        except ListFault as error:
            return _fault(error.fault, parsed, "*", context)
        except OSError as error:
            return context.say("disk", reason=error.strerror)

    async def open_todos(self) -> list[Item]:
        """Return the to-dos that are not done; none where there is no list. Raises `ListFault`, `OSError`."""
        try:
            items = await asyncio.to_thread(self._files.items, TODO)
        except ListFault as error:
            if error.fault is ChecklistFault.NO_LIST:
                return []
            raise
        return [item for item in items if not item.is_done]

    def _act(self, parsed: ParsedRequest, name: str, context: RequestContext) -> str:
        named = _named(name, context)
        match parsed.intent:
            case "add_items":
                return self._add(parsed, name, context)
            case "finish":
                return context.say(
                    "done", list=named, item=self._files.finish(name, parsed.slot("item")).text
                )
            case "remove":
                return context.say(
                    "removed", list=named, item=self._files.remove(name, parsed.slot("item")).text
                )
            case "clear_done":
                return context.say("cleared", list=named, count=self._files.clear_done(name))
            case "clear_list":
                return self._clear(parsed, name, context)
            case _:
                return self._show(self._files.items(name), name, context)

    def _add(self, parsed: ParsedRequest, name: str, context: RequestContext) -> str:
        items = [one for line in parsed.slot("items").splitlines() for one in [line.strip()] if one]
        if parsed.slot("more"):
            items += entries(parsed.slot("more"), parsed.language)
        added = self._files.add(name, items)
        named = _named(name, context)
        said = [
            context.say(form, list=named, items=", ".join(texts))
            for form, texts in (("added", added.new), ("there_already", added.there_already))
            if texts
        ]
        return "\n".join(said)

    def _clear(self, parsed: ParsedRequest, name: str, context: RequestContext) -> str:
        count, named = len(self._files.items(name)), _named(name, context)
        if not count:
            return context.say("list_empty", list=named)
        if not parsed.slot("sure"):
            return context.ask(
                parsed.of("clear_list", list=name),
                "sure",
                context.say("sure_clear", list=named, count=count),
            )
        return context.say("emptied", list=named, count=self._files.clear(name))

    def _show(self, items: Sequence[Item], name: str, context: RequestContext) -> str:
        still_open = [item for item in items if not item.is_done]
        context.show(
            {str(item.number): ShownEntry(kind="item", label=item.text, list=name) for item in still_open}
        )
        head = context.say("items" if still_open else "no_open_items", list=_named(name, context))
        done = len(items) - len(still_open)
        tail = [context.say("done_items", count=done)] if done and name == TODO else []
        return "\n".join([head, *_lines(still_open), *tail])

    def _overview(self, context: RequestContext) -> str:
        said = [line for name in (TODO, *self._files.names()) if (line := self._count(name, context))]
        return "\n".join([context.say("lists"), *said]) if said else context.say("no_lists")

    def _count(self, name: str, context: RequestContext) -> str | None:
        try:
            items = self._files.items(name)
        except ListFault:
            return None
        count = sum(not item.is_done for item in items)
        return context.say("list_line", list=_named(name, context), count=count)


def _add_wishes(parsed: ParsedRequest, parts: list[str]) -> tuple[ParsedRequest, ParsedRequest]:
    """The wish for one thing and the wish for several, to-dos or tasks."""
    if parsed.slot("kind") == "todo":
        return (
            parsed.of("add_items", items=parsed.slot("one"), list=TODO),
            parsed.of("add_items", items="\n".join(parts), list=TODO),
        )
    return (
        parsed.of("add_task", title=parsed.slot("one"), when=parsed.slot("when")),
        parsed.of("add_tasks", titles="\n".join(parts), when=parsed.slot("when")),
    )


def _lines(items: Sequence[Item]) -> list[str]:
    shown = [f"{item.number}. {item.text}" for item in items[:MAX_SHOWN_ITEMS]]
    return [*shown, "…"] if len(items) > MAX_SHOWN_ITEMS else shown


def _named(name: str, context: RequestContext) -> str:
    return context.say("todo_name") if name == TODO else context.say("list_name", name=" ".join(name.split()))


def _fault(fault: ChecklistFault, parsed: ParsedRequest, name: str, context: RequestContext) -> str:
    said = context.say(
        f"faults.{fault.value}",
        list=_named(name, context),
        item=parsed.slot("item"),
        example=_example(name, context.language),
    )
    return said[:1].upper() + said[1:]


def _example(name: str, language: Language) -> str:
    if language is Language.KOREAN:
        return "할 일 추가 우표 사기" if name == TODO else f"우유 {name} 목록에 추가"
    return "todo buy stamps" if name == TODO else f"add milk to the {name} list"
