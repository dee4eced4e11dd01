"""To-dos and lists: carry out what is asked of them, and say what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from agent_runner.agents.offline.conversation import Option, ShownEntry
from agent_runner.agents.offline.handler import AnswerNow, RequestHandler
from agent_runner.agents.offline.wording import entries
from agent_runner.checklists import TODO, Checklists, Item, ListError

MAX_SHOWN_ITEMS = 100
Result = TypeVar("Result")


class Lists(RequestHandler):
    """Handles requests about the lists of the group. What blocks runs in a thread."""

    @property
    def _files(self) -> Checklists:
        return Checklists(self.context.workspace.group)

    async def act(self) -> str:
        """Do one thing with one list; which list, is asked where none is named or known."""
        name = self.slot("list")
        if self.slot("it") or not name:
            name = self.context.state.list or ("" if self.parsed.intent == "add_items" else TODO)
        if not name:
            items = ", ".join(self.slot("items").splitlines())
            raise self.question("list", self.say("which_list", items=items))
        self.context.state = replace(self.context.state, list=name)
        return await self._in_thread(lambda: self._act(name), name)

    do_add_items = do_remove = do_clear_done = do_clear_list = do_show_list = act

    async def do_show_lists(self) -> str:
        """Name every list and how much of it is open."""
        return await self._in_thread(self._overview, "*")

    async def do_one_or_more(self) -> str:
        """Ask whether words with an "and" in them are one thing or several, to-dos or tasks."""
        one, parts, when = self.slot("one"), self.slot("more").splitlines(), self.slot("when")
        of, lines = self.parsed.of, "\n".join(parts)
        if self.slot("kind") == "todo":
            whole, several = (of("add_items", items=items, list=TODO) for items in (one, lines))
        else:
            whole, several = of("add_task", title=one, when=when), of("add_tasks", titles=lines, when=when)
        options = (
            Option(label=self.say("one", text=one), request=whole),
            Option(label=self.say("several", text=" · ".join(parts)), request=several),
        )
        raise self.question("which", self.say("one_or_more", count=len(parts)), options)

    async def open_todos(self) -> list[Item]:
        """Return the to-dos that are not done. Raises `AnswerNow` to say why they cannot be read."""
        items = await self._in_thread(lambda: self._files.items(TODO, is_needed=False), TODO)
        return [item for item in items if not item.is_done]

    async def _in_thread(self, work: Callable[[], Result], name: str) -> Result:
        """Do what blocks. Raises `AnswerNow` to say why the list of that name cannot be used."""
        try:
            return await asyncio.to_thread(work)
        except ListError as error:
            example = self.say("todo_example") if name == TODO else self.say("list_example", name=name)
            form, item = f"list_error.{error.problem.value}", self.slot("item")
            text = self.say(form, list=self._named(name), item=item, example=example)
            raise AnswerNow(text[:1].upper() + text[1:]) from error
        except OSError as error:
            raise AnswerNow(self.say("disk", reason=error.strerror)) from error

    def _act(self, name: str) -> str:
        named, item = self._named(name), self.slot("item")
        match self.parsed.intent:
            case "add_items":
                return self._add(name)
            case "finish":
                return self.say("list_done", list=named, item=self._files.finish(name, item).text)
            case "remove":
                return self.say("remove", list=named, item=self._files.remove(name, item).text)
            case "clear_done":
                return self.say("clear_done", list=named, count=self._files.clear(name, only_done=True))
            case "clear_list":
                return self._clear(name)
            case _:
                return self._show(name)

    def _add(self, name: str) -> str:
        items = [line.strip() for line in self.slot("items").splitlines() if line.strip()]
        if self.slot("more"):
            items += entries(self.slot("more"), self.parsed.language)
        added, named = self._files.add(name, items), self._named(name)
        texts = (("add_items", added.new), ("there_already", added.there_already))
        return "\n".join(self.say(form, list=named, items=", ".join(found)) for form, found in texts if found)

    def _clear(self, name: str) -> str:
        count, named = len(self._files.items(name)), self._named(name)
        if not count:
            return self.say("list_empty", list=named)
        if not self.slot("sure"):
            self.parsed = self.parsed.of("clear_list", list=name)
            raise self.question("sure", self.say("sure_clear", list=named, count=count))
        return self.say("clear_list", list=named, count=self._files.clear(name))

    def _show(self, name: str) -> str:
        items = self._files.items(name)
        still_open = [item for item in items if not item.is_done]
        self.show({str(one.number): ShownEntry(kind="item", label=one.text, list=name) for one in still_open})
        head = self.say("show_list" if still_open else "no_open_items", list=self._named(name))
        lines = [f"{item.number}. {item.text}" for item in still_open]
        text = self.listed(head, lines, most=MAX_SHOWN_ITEMS)
        done = len(items) - len(still_open)
        return f"{text}\n{self.say('done_items', count=done)}" if done and name == TODO else text

    def _overview(self) -> str:
        """Name each list with how much of it is open, but none that cannot be read."""
        lines = []
        for name in (TODO, *self._files.names()):
            try:
                items = self._files.items(name)
            except ListError:
                continue
            count = sum(not item.is_done for item in items)
            lines.append(self.say("list_line", list=self._named(name), count=count))
        return "\n".join([self.say("show_lists"), *lines]) if lines else self.say("no_lists")

    def _named(self, name: str) -> str:
        return self.say("todo_name") if name == TODO else self.say("list_name", name=" ".join(name.split()))
