"""What is said about to-dos and lists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agent_runner.agents.offline.asked import Asked
from agent_runner.agents.offline.checklists import Checklists, Fault, Item, ListFault
from agent_runner.agents.offline.intents import TODO, AddItems, Language, ListAct, OnList
from agent_runner.agents.offline.words import Words

MAX_SHOWN_ITEMS = 100


async def answer(checklists: Checklists, wish: AddItems | OnList, asked: Asked) -> str:
    """Do what is wished with the files, in a thread, and say what came of it."""
    try:
        return await asyncio.to_thread(_answer, checklists, wish, asked.words)
    except ListFault as error:
        return _fault(error.fault, wish, asked.words)
    except OSError as error:
        return asked.words.disk.format(reason=error.strerror)


async def overview(checklists: Checklists, asked: Asked) -> str:
    """Name every list and how much of it is open."""
    try:
        return await asyncio.to_thread(_overview, checklists, asked.words)
    except ListFault as error:
        return _fault(error.fault, OnList(ListAct.SHOW, "*"), asked.words)
    except OSError as error:
        return asked.words.disk.format(reason=error.strerror)


async def open_todos(checklists: Checklists) -> list[Item]:
    """The to-dos that are not done; none where there is no list. Raises `ListFault`, `OSError`."""
    try:
        items = await asyncio.to_thread(checklists.items, TODO)
    except ListFault as error:
        if error.fault is Fault.NO_LIST:
            return []
        raise
    return [item for item in items if not item.is_done]


def lines(items: Sequence[Item]) -> list[str]:
    shown = [f"{item.number}. {item.text}" for item in items[:MAX_SHOWN_ITEMS]]
    return [*shown, "…"] if len(items) > MAX_SHOWN_ITEMS else shown


def _answer(checklists: Checklists, wish: AddItems | OnList, words: Words) -> str:
    if isinstance(wish, AddItems):
        return _add(checklists, wish, words)
    name, named = wish.list_name, _named(wish.list_name, words)
    match wish.act:
        case ListAct.SHOW:
            return _show(checklists.items(name), name, words)
        case ListAct.FINISH:
            return words.done.format(list=named, item=checklists.finish(name, wish.item).text)
        case ListAct.REMOVE:
            return words.removed.format(list=named, item=checklists.remove(name, wish.item).text)
        case ListAct.CLEAR_DONE:
            return words.cleared.format(list=named, count=checklists.clear_done(name))


def _add(checklists: Checklists, wish: AddItems, words: Words) -> str:
    added = checklists.add(wish.list_name, wish.items)
    named = _named(wish.list_name, words)
    said = [
        form.format(list=named, items=", ".join(texts))
        for form, texts in ((words.added, added.new), (words.there_already, added.there_already))
        if texts
    ]
    return "\n".join(said)


def _show(items: Sequence[Item], name: str, words: Words) -> str:
    still_open = [item for item in items if not item.is_done]
    head = (words.items if still_open else words.no_open_items).format(list=_named(name, words))
    done = len(items) - len(still_open)
    tail = [words.done_items.format(count=done)] if done and name == TODO else []
    return "\n".join([head, *lines(still_open), *tail])


def _overview(checklists: Checklists, words: Words) -> str:
    said = [line for name in (TODO, *checklists.names()) if (line := _count(checklists, name, words))]
    return "\n".join([words.lists, *said]) if said else words.no_lists


def _count(checklists: Checklists, name: str, words: Words) -> str | None:
    try:
        items = checklists.items(name)
    except ListFault:
        return None
    count = sum(not item.is_done for item in items)
    return words.list_line.format(list=_named(name, words), count=count)


def _named(name: str, words: Words) -> str:
    return words.todo_name if name == TODO else words.list_name.format(name=" ".join(name.split()))


def _fault(fault: Fault, wish: AddItems | OnList, words: Words) -> str:
    said = words.faults[fault].format(
        list=_named(wish.list_name, words),
        item=wish.item if isinstance(wish, OnList) else "",
        example=_example(wish.list_name, words),
    )
    return said[:1].upper() + said[1:]


def _example(name: str, words: Words) -> str:
    if words.language is Language.KOREAN:
        return "할 일 추가 우표 사기" if name == TODO else f"우유 {name} 목록에 추가"
    return "todo buy stamps" if name == TODO else f"add milk to the {name} list"
