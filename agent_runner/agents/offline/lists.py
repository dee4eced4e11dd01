"""To-dos and lists: what is done with them, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agent_runner.agents.offline.checklists import ChecklistFault, Checklists, Item, ListFault
from agent_runner.agents.offline.conversation import Asked, Option, Ref
from agent_runner.agents.offline.intents import TODO, Wish
from agent_runner.agents.offline.wording import entries
from agent_runner.wire.times import Language

MAX_SHOWN_ITEMS = 100


class Lists:
    """Does what is wished with the files, in a thread, and says what came of it."""

    def __init__(self, checklists: Checklists) -> None:
        self._files = checklists

    async def act(self, wish: Wish, asked: Asked) -> str:
        """Do one thing with one list; which list, is asked where none is named or known."""
        if wish.intent == "one_or_more":
            return self._one_or_more(wish, asked)
        name = wish.slot("list")
        if wish.slot("it") or not name:
            name = asked.known.list or ("" if wish.intent == "add_items" else TODO)
        if not name:
            items = ", ".join(wish.slot("items").splitlines())
            return asked.ask(wish, "list", asked.say("which_list", items=items))
        asked.speak_of(list_name=name)
        try:
            return await asyncio.to_thread(self._act, wish, name, asked)
        except ListFault as error:
            return _fault(error.fault, wish, name, asked)
        except OSError as error:
            return asked.say("disk", reason=error.strerror)

    async def shown(self, name: str, asked: Asked) -> str:
        """Say what is on a list."""
        return await self.act(Wish(intent="show_list", language=asked.language, slots={"list": name}), asked)

    def _one_or_more(self, wish: Wish, asked: Asked) -> str:
        """Ask whether words with an "and" in them are one thing or several."""
        parts = wish.slot("more").splitlines()
        whole, several = _add_wishes(wish, parts)
        options = (
            Option(label=asked.say("one", text=wish.slot("one")), wish=whole),
            Option(label=asked.say("several", text=" · ".join(parts)), wish=several),
        )
        return asked.ask(wish, "which", asked.say("one_or_more", count=len(parts)), options)

    async def overview(self, wish: Wish, asked: Asked) -> str:
        """Name every list and how much of it is open."""
        try:
            return await asyncio.to_thread(self._overview, asked)
        except ListFault as error:
            return _fault(error.fault, wish, "*", asked)
        except OSError as error:
            return asked.say("disk", reason=error.strerror)

    async def open_todos(self) -> list[Item]:
        """Return the to-dos that are not done; none where there is no list. Raises `ListFault`, `OSError`."""
        try:
            items = await asyncio.to_thread(self._files.items, TODO)
        except ListFault as error:
            if error.fault is ChecklistFault.NO_LIST:
                return []
            raise
        return [item for item in items if not item.is_done]

    def _act(self, wish: Wish, name: str, asked: Asked) -> str:
        named = _named(name, asked)
        match wish.intent:
            case "add_items":
                return self._add(wish, name, asked)
            case "finish":
                return asked.say("done", list=named, item=self._files.finish(name, wish.slot("item")).text)
            case "remove":
                return asked.say("removed", list=named, item=self._files.remove(name, wish.slot("item")).text)
            case "clear_done":
                return asked.say("cleared", list=named, count=self._files.clear_done(name))
            case "clear_list":
                return self._clear(wish, name, asked)
            case _:
                return self._show(self._files.items(name), name, asked)

    def _add(self, wish: Wish, name: str, asked: Asked) -> str:
        items = [one for line in wish.slot("items").splitlines() for one in [line.strip()] if one]
        if wish.slot("more"):
            items += entries(wish.slot("more"), wish.language)
        added = self._files.add(name, items)
        named = _named(name, asked)
        said = [
            asked.say(form, list=named, items=", ".join(texts))
            for form, texts in (("added", added.new), ("there_already", added.there_already))
            if texts
        ]
        return "\n".join(said)

    def _clear(self, wish: Wish, name: str, asked: Asked) -> str:
        count, named = len(self._files.items(name)), _named(name, asked)
        if not count:
            return asked.say("list_empty", list=named)
        if not wish.slot("sure"):
            return asked.ask(
                wish.of("clear_list", list=name),
                "sure",
                asked.say("sure_clear", list=named, count=count),
            )
        return asked.say("emptied", list=named, count=self._files.clear(name))

    def _show(self, items: Sequence[Item], name: str, asked: Asked) -> str:
        still_open = [item for item in items if not item.is_done]
        asked.show({str(item.number): Ref(kind="item", label=item.text, list=name) for item in still_open})
        head = asked.say("items" if still_open else "no_open_items", list=_named(name, asked))
        done = len(items) - len(still_open)
        tail = [asked.say("done_items", count=done)] if done and name == TODO else []
        return "\n".join([head, *_lines(still_open), *tail])

    def _overview(self, asked: Asked) -> str:
        said = [line for name in (TODO, *self._files.names()) if (line := self._count(name, asked))]
        return "\n".join([asked.say("lists"), *said]) if said else asked.say("no_lists")

    def _count(self, name: str, asked: Asked) -> str | None:
        try:
            items = self._files.items(name)
        except ListFault:
            return None
        count = sum(not item.is_done for item in items)
        return asked.say("list_line", list=_named(name, asked), count=count)


def _add_wishes(wish: Wish, parts: list[str]) -> tuple[Wish, Wish]:
    """The wish for one thing and the wish for several, to-dos or tasks."""
    if wish.slot("kind") == "todo":
        return (
            wish.of("add_items", items=wish.slot("one"), list=TODO),
            wish.of("add_items", items="\n".join(parts), list=TODO),
        )
    return (
        wish.of("add_task", title=wish.slot("one"), when=wish.slot("when")),
        wish.of("add_tasks", titles="\n".join(parts), when=wish.slot("when")),
    )


def _lines(items: Sequence[Item]) -> list[str]:
    shown = [f"{item.number}. {item.text}" for item in items[:MAX_SHOWN_ITEMS]]
    return [*shown, "…"] if len(items) > MAX_SHOWN_ITEMS else shown


def _named(name: str, asked: Asked) -> str:
    return asked.say("todo_name") if name == TODO else asked.say("list_name", name=" ".join(name.split()))


def _fault(fault: ChecklistFault, wish: Wish, name: str, asked: Asked) -> str:
    said = asked.say(
        f"faults.{fault.value}",
        list=_named(name, asked),
        item=wish.slot("item"),
        example=_example(name, asked.language),
    )
    return said[:1].upper() + said[1:]


def _example(name: str, language: Language) -> str:
    if language is Language.KOREAN:
        return "할 일 추가 우표 사기" if name == TODO else f"우유 {name} 목록에 추가"
    return "todo buy stamps" if name == TODO else f"add milk to the {name} list"
