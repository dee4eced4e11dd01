"""To-dos and lists: carry out what is asked of them, and say what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent_runner.agents.offline.checklists import Item, ListError, ListProblem
from agent_runner.agents.offline.conversation import Option, RequestContext, ShownEntry
from agent_runner.agents.offline.intents import TODO, ParsedRequest
from agent_runner.agents.offline.wording import entries

MAX_SHOWN_ITEMS = 100
Work = Callable[[ParsedRequest, str, RequestContext], str]
"""Does one thing with the list of a name and returns what to say. Blocks."""


async def act(parsed: ParsedRequest, context: RequestContext) -> str:
    """Do one thing with one list; which list, is asked where none is named or known."""
    name = parsed.slot("list")
    if parsed.slot("it") or not name:
        name = context.state.list or ("" if parsed.intent == "add_items" else TODO)
    if not name:
        items = ", ".join(parsed.slot("items").splitlines())
        raise context.question(parsed, "list", context.say("which_list", items=items))
    context.speak_of(list_name=name)
    return await _in_thread(_work_of(parsed.intent), parsed, name, context)


async def overview(parsed: ParsedRequest, context: RequestContext) -> str:
    """Name every list and how much of it is open."""
    return await _in_thread(_overview, parsed, "*", context)


async def shown(name: str, context: RequestContext) -> str:
    """Say what is on a list."""
    show = ParsedRequest(intent="show_list", language=context.language, slots={"list": name})
    return await act(show, context)


async def open_todos(context: RequestContext) -> list[Item]:
    """Return the to-dos that are not done, none where there is no list. Raises `ListError`, `OSError`."""
    try:
        items = await asyncio.to_thread(context.lists.items, TODO)
    except ListError as error:
        if error.problem is ListProblem.NO_LIST:
            return []
        raise
    return [item for item in items if not item.is_done]


async def one_or_more(parsed: ParsedRequest, context: RequestContext) -> str:
    """Ask whether words with an "and" in them are one thing or several, to-dos or tasks."""
    one, parts = parsed.slot("one"), parsed.slot("more").splitlines()
    if parsed.slot("kind") == "todo":
        whole = parsed.of("add_items", items=one, list=TODO)
        several = parsed.of("add_items", items="\n".join(parts), list=TODO)
    else:
        whole = parsed.of("add_task", title=one, when=parsed.slot("when"))
        several = parsed.of("add_tasks", titles="\n".join(parts), when=parsed.slot("when"))
    options = (
        Option(label=context.say("one", text=one), request=whole),
        Option(label=context.say("several", text=" · ".join(parts)), request=several),
    )
    raise context.question(parsed, "which", context.say("one_or_more", count=len(parts)), options)


async def _in_thread(work: Work, parsed: ParsedRequest, name: str, context: RequestContext) -> str:
    try:
        return await asyncio.to_thread(work, parsed, name, context)
    except ListError as error:
        return _explained(error.problem, parsed, name, context)
    except OSError as error:
        return context.say("disk", reason=error.strerror)


def _work_of(intent: str) -> Work:
    works: dict[str, Work] = {
        "add_items": _add,
        "clear_list": _clear,
        "clear_done": _clear_done,
        "finish": _finish,
        "remove": _remove,
    }
    return works.get(intent, _show)


def _add(parsed: ParsedRequest, name: str, context: RequestContext) -> str:
    items = [line.strip() for line in parsed.slot("items").splitlines() if line.strip()]
    if parsed.slot("more"):
        items += entries(parsed.slot("more"), parsed.language)
    added, named = context.lists.add(name, items), _named(name, context)
    texts = (("add_items", added.new), ("there_already", added.there_already))
    return "\n".join(context.say(form, list=named, items=", ".join(found)) for form, found in texts if found)


def _finish(parsed: ParsedRequest, name: str, context: RequestContext) -> str:
    item = context.lists.finish(name, parsed.slot("item"))
    return context.say("list_done", list=_named(name, context), item=item.text)


def _remove(parsed: ParsedRequest, name: str, context: RequestContext) -> str:
    item = context.lists.remove(name, parsed.slot("item"))
    return context.say("remove", list=_named(name, context), item=item.text)


def _clear_done(_parsed: ParsedRequest, name: str, context: RequestContext) -> str:
    count = context.lists.clear(name, only_done=True)
    return context.say("clear_done", list=_named(name, context), count=count)


def _clear(parsed: ParsedRequest, name: str, context: RequestContext) -> str:
    count, named = len(context.lists.items(name)), _named(name, context)
    if not count:
        return context.say("list_empty", list=named)
    if not parsed.slot("sure"):
        request = parsed.of("clear_list", list=name)
        raise context.question(request, "sure", context.say("sure_clear", list=named, count=count))
    return context.say("clear_list", list=named, count=context.lists.clear(name))


def _show(_parsed: ParsedRequest, name: str, context: RequestContext) -> str:
    items = context.lists.items(name)
    still_open = [item for item in items if not item.is_done]
    context.show({str(one.number): ShownEntry(kind="item", label=one.text, list=name) for one in still_open})
    head = context.say("show_list" if still_open else "no_open_items", list=_named(name, context))
    done = len(items) - len(still_open)
    tail = [context.say("done_items", count=done)] if done and name == TODO else []
    return "\n".join([head, *_lines(still_open), *tail])


def _overview(parsed: ParsedRequest, _name: str, context: RequestContext) -> str:
    lines = [line for name in (TODO, *context.lists.names()) if (line := _count(name, context))]
    return "\n".join([context.say(parsed.intent), *lines]) if lines else context.say("no_lists")


def _count(name: str, context: RequestContext) -> str:
    """Say how much of a list is open; nothing of one that cannot be read."""
    try:
        items = context.lists.items(name)
    except ListError:
        return ""
    count = sum(not item.is_done for item in items)
    return context.say("list_line", list=_named(name, context), count=count)


def _lines(items: Sequence[Item]) -> list[str]:
    lines = [f"{item.number}. {item.text}" for item in items[:MAX_SHOWN_ITEMS]]
    return [*lines, "…"] if len(items) > MAX_SHOWN_ITEMS else lines


def _named(name: str, context: RequestContext) -> str:
    return context.say("todo_name") if name == TODO else context.say("list_name", name=" ".join(name.split()))


def _explained(problem: ListProblem, parsed: ParsedRequest, name: str, context: RequestContext) -> str:
    """Say why a list cannot be used, and how it would be begun."""
    example = context.say("todo_example") if name == TODO else context.say("list_example", name=name)
    text = context.say(
        f"list_error.{problem.value}", list=_named(name, context), item=parsed.slot("item"), example=example
    )
    return text[:1].upper() + text[1:]
