"""The handlers of requests about to-dos and lists, with their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from typing import TypeVar

from agent_runner.agents.offline.conversation import Option, ShownEntry
from agent_runner.agents.offline.handler import AnswerNow, RequestHandler
from agent_runner.agents.offline.intents import PATTERNS
from agent_runner.agents.offline.wording import entries
from agent_runner.checklists import TODO, Checklists, ListError, file_stem, has_words

MAX_SHOWN_ITEMS = 100
NEARLY = 0.8
"""Likeness from 0 to 1 at which one list name may be another with a typing error."""
KNOWN_NAMES = ("shopping", "groceries", "장보기", "쇼핑")
"""Names that need no question before a list begins with them."""
_OF_ITEM = ("finish", "remove", "untick", "move_item", "on_list")
"""Intents that name an entry, which says by itself on which list it is."""
Result = TypeVar("Result")


class Lists(RequestHandler):
    """Handles requests about the lists of the group. What blocks runs in a thread."""

    @property
    def _files(self) -> Checklists:
        return Checklists(self.context.workspace.group)

    async def act(self) -> str:
        """Do one thing with one list; which list, is asked where none is named or known."""
        name = await self._in_thread(self._name, "*")
        if not name:
            items = ", ".join(self.slot("items").splitlines())
            raise self.question("list", self.say("which_list", items=items))
        text = await self._in_thread(lambda: self._act(name), name)
        self.remember(list=name)
        return text

    def _name(self) -> str:
        """Return the list that is meant; empty where that has to be asked. Blocks."""
        name, is_added = self.slot("list"), self.parsed.intent == "add_items"
        if not name and not self.slot("it") and self.parsed.intent in _OF_ITEM:
            name = self._list_of_item()
        if not name or self.slot("it"):
            names = self._files.names()
            only = names[0] if len(names) == 1 else ""
            name = self.context.state.list or only or ("" if is_added else TODO)
        if is_added and not self.slot("list"):
            self._take_name()
            name = self.slot("list") or name
        return name

    do_add_items = do_remove = do_clear_done = do_clear_list = do_show_list = act
    do_on_list = do_count = do_move_item = do_put_back = do_remove_items = act

    async def do_new_list(self) -> str:
        """Ask for the first entries of a new list, which begins with them."""
        self.parsed = self.parsed.of("add_items", list=self.slot("list"))
        raise self.question("what", self.say("new_list"))

    def _list_of_item(self) -> str:
        """Return the list that has what is named: the one spoken of last before another. Blocks."""
        item, last = self.slot("item").casefold(), self.context.state.list
        found = [
            entry.list
            for entry in self._entries([], is_open=self.parsed.intent != "untick")
            if item == entry.label.casefold() or has_words(entry.label, item)
        ]
        names = list(dict.fromkeys(found))
        if len(names) < 2 or last in names:
            return last if last in names else names[0] if names else ""
        options = [self.option(self._named(name), list=name) for name in names]
        raise self.question("which", self.say("which_of_lists", item=self.slot("item")), options)

    async def entries(self, only: Sequence[str], *, is_open: bool = True) -> list[ShownEntry]:
        """Return the open or the ticked entries of lists, of all where none is named; none if unreadable."""
        try:
            return await self._in_thread(lambda: self._entries(only, is_open=is_open), "*")
        except AnswerNow:
            return []

    async def open_todos(self) -> list[ShownEntry]:
        """Return the to-dos that are not done. Raises `AnswerNow` to say why they cannot be read."""
        return await self._in_thread(lambda: self._of_list(TODO), TODO)

    def _entries(self, only: Sequence[str], *, is_open: bool = True) -> list[ShownEntry]:
        found = []
        for name in only or (TODO, *self._files.names()):
            with suppress(ListError):
                found += self._of_list(name, is_open=is_open)
        return found

    def _of_list(self, name: str, *, is_open: bool = True) -> list[ShownEntry]:
        items = self._files.items(name, is_needed=False)
        found = [one for one in items if one.is_done is not is_open]
        return [ShownEntry(kind="item", id=str(one.number), label=one.text, list=name) for one in found]

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

    async def _in_thread(self, work: Callable[[], Result], name: str) -> Result:
        """Do what blocks. Raises `AnswerNow` to say why the list of that name cannot be used."""
        try:
            return await asyncio.to_thread(work)
        except ListError as error:
            example = self.say("todo_example") if name == TODO else self.say("list_example", name=name)
            form, item = f"list_error.{error.problem.value}", self.slot("item")
            text = self.say(form, list=self._named(name), item=item, example=example)
            raise AnswerNow(self._upper(text)) from error
        except OSError as error:
            raise AnswerNow(self.say("disk", reason=error.strerror)) from error

    def _act(self, name: str) -> str:
        acts = {
            "add_items": self._add,
            "clear_done": self._clear,
            "clear_list": self._clear,
            "count": self._count,
            "on_list": self._has,
            "put_back": self._put_back,
            "remove_items": self._clear,
            "show_list": self._show,
        }
        return acts.get(self.parsed.intent, self._change)(name)

    def _count(self, name: str) -> str:
        count = sum(not item.is_done for item in self._files.items(name))
        return self._upper(self.say("count", list=self._named(name), count=count))

    def _change(self, name: str) -> str:
        """Tick, untick, remove or move one entry, or each of several."""
        to, texts = self.slot("to"), []
        for item in self._items(name):
            if self.parsed.intent in ("finish", "untick"):
                is_done = self.parsed.intent == "finish"
                found = self._files.tick(name, item, is_done=is_done)
                inverse = self.parsed.of("untick" if is_done else "finish", list=name, item=found.text)
                self.did(inverse.having(kind="item", label=found.text))
            else:
                found = self._files.remove(name, item)
                back = self.parsed.of("put_back", list=name, items=found.text, done="x" * found.is_done)
                self.did(back)
            texts.append(found.text)
        if to:
            self._files.add(to, texts)
            self.did(self.parsed.of("remove_items", list=to, items="\n".join(texts)))
        form = "list_done" if self.parsed.intent == "finish" else self.parsed.intent
        named, to_list = self._named(name), self._named(to) if to else ""
        return self._upper(self.say(form, list=named, item=", ".join(texts), to=to_list))

    def _items(self, name: str) -> list[str]:
        """Return what is named: one entry, or several where no entry has the whole words."""
        whole = self.slot("item")
        texts = [item.text.casefold() for item in self._files.items(name)]
        several = entries(whole, self.parsed.language)
        known = [one for one in several if any(has_words(text, one) for text in texts)]
        is_one = len(several) < 2 or len(known) < len(several) or whole.casefold() in texts
        return [whole] if is_one else several

    def _has(self, name: str) -> str:
        """Say whether something is on a list, and whether it is done."""
        item = self.slot("item")
        found = [one for one in self._files.items(name) if has_words(one.text, item)]
        is_open = any(not one.is_done for one in found)
        form = "on_list" if is_open else "on_list_done" if found else "not_on_list"
        return self.say(form, list=self._named(name), item=found[0].text if found else item)

    def _ask_if_misspelt(self, name: str) -> None:
        """Ask before a list begins whose name is nearly that of another: `shoping`, `teh shopping`."""
        names = self._files.names()
        is_new = name != TODO and file_stem(name) not in names
        near = _near(name, names)
        if is_new and near and not self.slot("sure"):
            options = [self.option(self._named(one), list=one, sure="yes") for one in (*near, name)]
            raise self.question("which", self.say("which_near", list=self._named(name)), options)

    def _ask_if_new(self, name: str) -> None:
        """Ask before a list begins whose name may be no name: any words can answer “Which list?”."""
        is_known = name in (TODO, *KNOWN_NAMES) or file_stem(name) in self._files.names()
        if self.slot("doubt") and not is_known and not self.slot("sure"):
            raise self.question("sure", self.say("sure_new_list", list=self._named(name)))

    def _take_name(self) -> None:
        """Take the list from `drill to hardware`; ask where there is none of that name. Blocks."""
        found = PATTERNS["entry_to_list"].fullmatch(self.slot("items"))
        if found is None or self.slot("sure"):
            return
        there = self.parsed.having(items=found["items"], list=found["list"])
        names = self._files.names()
        if file_stem(found["list"]) in names or _near(found["list"], names):
            self.parsed = there
            return
        named = self.say("option_new_list", items=found["items"], list=self._named(found["list"]))
        options = [
            Option(label=named, request=there.having(sure="yes")),
            self.option(f"'{self.slot('items')}'", sure="yes"),
        ]
        raise self.question("which", self.say("which_entry"), options)

    def _add(self, name: str) -> str:
        self._ask_if_misspelt(name)
        self._ask_if_new(name)
        items = [line.strip() for line in self.slot("items").splitlines() if line.strip()]
        if self.slot("more"):
            items += entries(self.slot("more"), self.parsed.language)
        added, named = self._files.add(name, items), self._named(name)
        if added.new:
            self.did(self.parsed.of("remove_items", list=name, items="\n".join(added.new)))
        texts = (("add_items", added.new), ("there_already", added.there_already))
        return "\n".join(self.say(form, list=named, items=", ".join(found)) for form, found in texts if found)

    def _put_back(self, name: str) -> str:
        items, done = self.slot("items").splitlines(), self.slot("done").ljust(len(self.slot("items")))
        for item, mark in zip(items, done, strict=False):
            self._files.add(name, [item])
            if mark == "x":
                self._files.tick(name, item, is_done=True)
        self.did(self.parsed.of("remove_items", list=name, items="\n".join(items)))
        return self.say("put_back", list=self._named(name), items=", ".join(items))

    def _clear(self, name: str) -> str:
        """Take entries off: all, after a question, or those that are done or named."""
        intent, named = self.parsed.intent, self._named(name)
        items = self._files.items(name)
        chosen = {text.casefold() for text in self.slot("items").splitlines()}
        if intent != "clear_list":
            items = [one for one in items if (one.text.casefold() in chosen if chosen else one.is_done)]
        elif not items:
            return self._upper(self.say("list_empty", list=named))
        elif not self.slot("sure"):
            there = "\n".join(one.text for one in items)
            self.parsed = self.parsed.of("clear_list", list=name, items=there)
            raise self.question("sure", self.say("sure_clear", list=named, count=len(items)))
        else:  # what came after the question stays
            items = [one for one in items if one.text.casefold() in chosen]
        self._files.take_out(name, items)
        marks = "".join("x" if one.is_done else " " for one in items)
        texts = [one.text for one in items]
        if items:
            self.did(self.parsed.of("put_back", list=name, items="\n".join(texts), done=marks))
        return self.say(intent, list=named, count=len(items), items=", ".join(texts))

    def _show(self, name: str) -> str:
        items, still_open = self._files.items(name), self._of_list(name)
        self.remember(shown={one.id: one for one in still_open})
        head = self.say("show_list" if still_open else "no_open_items", list=self._named(name))
        text = self.listed(head, [f"{one.id}. {one.label}" for one in still_open], most=MAX_SHOWN_ITEMS)
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

    def _upper(self, text: str) -> str:
        return text[:1].upper() + text[1:]


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Return the names of which a name may be a typing error."""
    return [one for one in names if SequenceMatcher(None, one, name.casefold()).ratio() >= NEARLY]
