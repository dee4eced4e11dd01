"""Handles requests about to-dos and other lists: find or ask for the list, then read or change its file.

The slots of a request are the words that it has under names such as `item` and `list`, and flags such as
`sure`, which is set once the person has confirmed; the head of `intents.toml` describes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from typing import TypeVar

from agent_runner.agents.offline.conversation import Option, ShownEntry
from agent_runner.agents.offline.handler import AnswerNow, RequestHandler, carry_out
from agent_runner.agents.offline.intents import GOODS, PATTERNS, ROWS, say
from agent_runner.agents.offline.spelling import fits_despite_slips
from agent_runner.agents.offline.wording import bare_forms, entries, has_more_than_name
from agent_runner.checklists import TODO, Checklists, Item, ListError, file_stem, has_words
from agent_runner.wire.times import Language

MAX_SHOWN_ITEMS = 100
"""Most entries of a list in one answer."""
NEARLY = 0.8
"""Similarity from 0 to 1 at which a list name may be another one with a typing error."""
SHOPPING_NAMES = ("shopping", "groceries", "장보기", "쇼핑")
"""Names of lists that are created without a question; all are for shopping."""
READING = frozenset({"show_list", "count", "on_list"})
"""Requests that change no list."""
Result = TypeVar("Result")


class Lists(RequestHandler):
    """Handles requests about the lists of the group. Methods that read or write files run in a thread."""

    name = "*"
    """The name of the list that the request is about, once known; every sentence may use it."""

    @property
    def _files(self) -> Checklists:
        """The files of the group's lists."""
        return Checklists(self.context.workspace.group)

    def say(self, form: str, /, **blanks: object) -> str:
        """Return the sentence named `form` in `intents.toml`, its placeholders filled.

        `{list}` is the name of the list that the request is about; `{List}` is the same at the start of the
        sentence.
        """
        named = self._named(self.name)
        known: dict[str, object] = {"list": named, "List": named[:1].upper() + named[1:]}
        return super().say(form, **known | blanks)

    def _named(self, name: str) -> str:
        """Return a list's name as it is written in a sentence, such as `the shopping list`."""
        form = "todo_name" if name == TODO else "list_name"
        return say(form, self.parsed.language, name=" ".join(name.split()))

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Run blocking work in a thread and return its result.

        Raises `AnswerNow` with the reason if a list cannot be used or the disk fails.
        """
        try:
            return await asyncio.to_thread(work)
        except ListError as error:
            form = "todo_example" if self.name == TODO else "list_example"
            blanks = {"item": self.slot("item"), "example": self.say(form, name=self.name)}
            raise AnswerNow(self.say(f"list_error.{error.problem.value}", **blanks)) from error
        except OSError as error:
            raise AnswerNow(self.say("disk", reason=error.strerror)) from error

    # Finding the list

    async def act(self) -> str:
        """Carry out a request about one list, and return the answer.

        Raises `AnswerNow` to ask which list is meant, if none is named or known, or to refuse a person whose
        role may not do it.
        """
        self.check_files(writes=self.parsed.intent not in READING)
        return await self.in_thread(self._act)

    do_add_items = do_clear_done = do_clear_list = do_count = do_move_item = do_on_list = act
    do_put_back = do_remove_items = do_show_list = act

    async def do_remove(self) -> str:
        """Remove an entry of a list, and return the answer.

        A number refers to the entries shown last, which may be reminders or tasks: then raises `AnswerNow` to
        ask whether to cancel the reminder, or to drop the task.
        """
        entry = self.context.state.shown.get(self.slot("item"))
        if entry is None or entry.kind == "item" or self.slot("list"):
            return await self.act()
        if entry.kind != "task":  # a reminder: the flag `ask` makes `carry_out` raise the question
            return await carry_out(self.parsed.of("cancel_reminder", **entry.slots, ask="yes"), self.context)
        option = Option(label=entry.label, request=self.parsed.of("drop_task", **entry.slots))
        raise self.question("which", self.say("did_you_mean.drop_task"), [option])

    def _act(self) -> str:
        """Find the list and carry out the request; return the answer. Blocks.

        The method `_<intent>` does it, or `_change` for an intent without one. The list is remembered, so
        that later requests need not name it. Raises `AnswerNow` to ask for the list if none is named or
        known.
        """
        name = self._find_list()
        if not name:
            items = ", ".join(self.slot("items").splitlines())
            raise self.question("list", self.say("which_list", items=items))
        self.name = name
        work: Callable[[], str] = getattr(self, f"_{self.parsed.intent}", self._change)
        text = work()
        self.remember(list=name)
        return text

    def _find_list(self) -> str:
        """Return the name of the list that the request is about; empty if the person has to be asked.

        If the request names none, it is the list that has the entry which the request names, else the list
        last referred to, else the only list besides the to-dos, else the to-dos. With the slot `it` ("put it
        on the list") a list or entry that the request names does not count: it is the list last referred to,
        else the only one, else the to-dos.

        New entries never go to the to-dos by default: the name is empty then. If the words of new entries
        name a list (`_take_name`), it is that one. Everyday goods in Korean are put on the shopping list, if
        there is one, instead of the to-dos.

        Raises `AnswerNow` to ask what is meant.
        """
        name = self.slot("list")
        adds = self.parsed.intent == "add_items"
        # A request such as "tick milk" names an entry, which tells the list.
        if not name and not self.slot("it") and ROWS.get(self.parsed.intent, {}).get("names_entry"):
            name = self._list_of_item()
        if not name or self.slot("it"):  # "put it on the list" means the list last referred to
            names = self._files.names()
            only = names[0] if len(names) == 1 else ""
            name = self.context.state.list or only or ("" if adds else TODO)
        if adds and not self.slot("list"):
            self._take_name()
            name = self.slot("list") or self._shopping_instead_of_todos(name)
        return name

    def _shopping_instead_of_todos(self, name: str) -> str:
        """Return the shopping list's name if `name` is the to-dos, but the new entries are everyday goods.

        Return `name` if not all entries are such goods, or there is no shopping list. Only Korean words for
        goods are recognised.
        """
        shops = [shop for shop in SHOPPING_NAMES if shop in self._files.names()]
        goods_matches = [PATTERNS["good_ko"].fullmatch(item) for item in self.slot("items").splitlines()]
        return shops[0] if name == TODO and shops and all(goods_matches) else name

    def _list_of_item(self) -> str:
        """Return the name of the list that contains the entry in the slot `item`; empty if none does.

        It has to be an open entry, for `untick` a ticked one; if none fits, a misspelt one counts. If several
        lists have it, it is the one last referred to, or `AnswerNow` is raised to ask which one is meant.
        """
        item, last = self.slot("item").casefold(), self.context.state.list
        entries = self._entries([], is_open=self.parsed.intent != "untick")
        fitting = [
            entry for entry in entries if item == entry.label.casefold() or has_words(entry.label, item)
        ]
        fitting = fitting or [entry for entry in entries if fits_despite_slips(item, entry.label)]
        names = list(dict.fromkeys(entry.list for entry in fitting))
        if last in names:
            return last
        if len(names) < 2:
            return names[0] if names else ""
        options = [self.option(self._named(name), list=name) for name in names]
        raise self.question("which", self.say("which_of_lists", item=self.slot("item")), options)

    def _take_name(self) -> None:
        """Split entries such as `drill to hardware` into the entry and the list, in the request's slots.

        Do nothing for other entries, or if the person has confirmed. Raises `AnswerNow` to ask what is meant
        if there is no list of that name.
        """
        match = PATTERNS["entry_to_list"].fullmatch(self.slot("items"))
        if match is None or self.slot("sure"):
            return
        to_named = self.parsed.having(items=match["items"], list=match["list"])
        if self._is_known(match["list"]) or self._similar_names(match["list"]):
            self.parsed = to_named
            return
        label = self.say("option_new_list", items=match["items"], list=self._named(match["list"]))
        options = [
            Option(label=label, request=to_named.having(sure="yes")),
            self.option(f"'{self.slot('items')}'", sure="yes"),
        ]
        raise self.question("which", self.say("which_entry"), options)

    def _ask_if_new(self) -> None:
        """Raise `AnswerNow` to ask whether to create the list, if its name may be misspelt or no name at all.

        Do nothing if the list exists or the person has confirmed.
        """
        if self.name == TODO or self.slot("sure") or self._is_known(self.name):
            return
        if similar := self._similar_names(self.name):  # `shoping`, `teh shopping`
            names = (*similar, self.name)
            options = [self.option(self._named(name), list=name, sure="yes") for name in names]
            raise self.question("which", self.say("which_near"), options)
        if self.slot("doubt") and self.name not in SHOPPING_NAMES:  # any words can answer “Which list?”
            raise self.question("sure", self.say("sure_new_list"))

    def _is_known(self, name: str) -> bool:
        """Return whether there is a list of this name."""
        return file_stem(name) in self._files.names()

    def _similar_names(self, name: str) -> list[str]:
        """Return the names of the lists that a name may be a misspelling of."""
        folded_name, names = name.casefold(), self._files.names()
        return [known for known in names if SequenceMatcher(None, known, folded_name).ratio() >= NEARLY]

    # Entries

    async def entries(self, only: Sequence[str], *, is_open: bool = True) -> list[ShownEntry]:
        """Return the open or the ticked entries of the lists named in `only`; of all lists if that is empty.

        A list that cannot be used is left out. If the disk fails, nothing is returned.
        """
        with suppress(AnswerNow):
            return await self.in_thread(lambda: self._entries(only, is_open=is_open))
        return []

    async def open_todos(self) -> list[ShownEntry]:
        """Return the open to-dos; the to-do list becomes the list that this request is about.

        Raises `AnswerNow` to say why they cannot be read.
        """
        self.name = TODO
        return await self.in_thread(lambda: self._entries_of(TODO))

    def _entries(self, only: Sequence[str], *, is_open: bool) -> list[ShownEntry]:
        """Return the open or the ticked entries of the lists named in `only`; of all lists if that is empty.

        A list that cannot be used is left out. Blocks.
        """
        entries = []
        for name in only or (TODO, *self._files.names()):
            with suppress(ListError):
                entries += self._entries_of(name, is_open=is_open)
        return entries

    def _entries_of(self, name: str, *, is_open: bool = True) -> list[ShownEntry]:
        """Return the open or the ticked entries of one list; none if there is no such list. Blocks.

        Raises `ListError` if the list cannot be used.
        """
        items = self._files.items(name, is_needed=False)
        return [
            ShownEntry(kind="item", id=str(item.number), label=item.text, list=name)
            for item in items
            if item.is_done is not is_open
        ]

    # Showing

    def _show_list(self) -> str:
        """Return the open entries with their numbers; of the to-dos, also how many are done.

        The numbers are remembered, so that a later message can use them.
        """
        items, still_open = self._files.items(self.name), self._entries_of(self.name)
        self.remember(shown={entry.id: entry for entry in still_open})
        head = self.say("show_list" if still_open else "no_open_items")
        text = self.listed(head, [f"{entry.id}. {entry.label}" for entry in still_open], most=MAX_SHOWN_ITEMS)
        done = len(items) - len(still_open)
        return f"{text}\n{self.say('done_items', count=done)}" if done and self.name == TODO else text

    def _count(self) -> str:
        """Return how many entries of the list are open, as an answer."""
        return self.say("count", count=_open_count(self._files.items(self.name)))

    def _on_list(self) -> str:
        """Return the answer whether the thing in the slot `item` is on the list, and whether it is done."""
        item = self.slot("item")
        fitting = [entry for entry in self._files.items(self.name) if has_words(entry.text, item)]
        if not fitting:
            return self.say("not_on_list", item=item)
        form = "on_list" if _open_count(fitting) else "on_list_done"
        return self.say(form, item=fitting[0].text)

    async def do_show_lists(self) -> str:
        """Return every list with the number of its open entries."""
        self.check_files(writes=False)
        return await self.in_thread(self._overview)

    def _overview(self) -> str:
        """Return the answer with a line for each list: its name and the number of open entries. Blocks."""
        lines = []
        for name in (TODO, *self._files.names()):
            with suppress(ListError):  # a list that cannot be read is left out
                count = _open_count(self._files.items(name))
                lines.append(self.say("list_line", list=self._named(name), count=count))
        return "\n".join([self.say("show_lists"), *lines]) if lines else self.say("no_lists")

    # Adding

    async def do_new_list(self) -> str:
        """Raise `AnswerNow` to ask for the first entries of a new list; its file is created with them."""
        self.parsed = self.parsed.of("add_items", list=self.slot("list"))
        raise self.question("what", self.say("new_list"))

    async def do_one_or_more(self) -> str:
        """Raise `AnswerNow` to ask whether words with an "and" in them are one thing or several.

        The slot `one` has the whole text, `more` its parts, one on each line. They become to-dos if the slot
        `kind` is `todo`, else tasks.
        """
        whole_text = self.slot("one")
        parts = self.slot("more").splitlines()
        lines = "\n".join(parts)
        of = self.parsed.of
        if self.slot("kind") == "todo":
            whole = of("add_items", items=whole_text, list=TODO)
            several = of("add_items", items=lines, list=TODO)
        else:
            when = self.slot("when")
            whole = of("add_task", title=whole_text, when=when)
            several = of("add_tasks", titles=lines, when=when)
        options = (
            Option(label=self.say("one", text=whole_text), request=whole),
            Option(label=self.say("several", text=" · ".join(parts)), request=several),
        )
        raise self.question("which", self.say("one_or_more", count=len(parts)), options)

    def _add_items(self) -> str:
        """Add entries to the list, and return the answer; record how to undo it. Blocks.

        Raises `AnswerNow` to ask about a new list, or about words that may be no entries.
        """
        self._ask_if_new()
        items = [line.strip() for line in self.slot("items").splitlines() if line.strip()]
        items += entries(self.slot("more"), self.parsed.language)
        if self.name != TODO and self.parsed.language is Language.KOREAN:
            items = [self._known_form(item) for item in items]
        # In Korean, one word that names nothing is enough to ask: `빵이랑 그거` ("bread and that").
        any_or_all = any if self.parsed.language is Language.KOREAN else all
        if any_or_all(map(PATTERNS["no_entry"].fullmatch, items)):
            self.parsed = self.parsed.of("add_items", list=self.name)
            raise self.question("what", self.say("which_entry"))
        self._ask_if_unusual(items)
        added = self._files.add(self.name, items)
        if added.new:
            self._record_undo("remove_items", items="\n".join(added.new))
        texts = (("add_items", added.new), ("there_already", added.there_already))
        return "\n".join(self.say(form, items=", ".join(named)) for form, named in texts if named)

    def _known_form(self, item: str) -> str:
        """Return a Korean entry with or without its last particle, whichever form is a known thing.

        `수도` may be a word, or `수` with the particle `도`. If neither form is known, several entries stay
        as they are. After a "yes" (slot `sure`) nothing is asked.

        Raises:
            AnswerNow: neither form of the only entry is known, so the person is asked; or a statement that
                something is missing (slot `stated`) has more words than a thing's name.
        """
        if self.slot("stated") and not self.slot("sure") and has_more_than_name(item):
            raise AnswerNow(self.say("two_meanings"))  # `민수가 잼 사야 돼`
        forms = bare_forms(item)
        known = [form for form in forms if self._is_usual(form)]
        if known or len(forms) == 1 or self.slot("sure"):
            return known[0] if known else item
        if len(self.slot("items").splitlines()) > 1:
            return item
        options = [self.option(f"'{form}'", items=form, list=self.name, sure="yes") for form in forms[::-1]]
        raise self.question("which", self.say("which_entry"), options)

    def _is_usual(self, item: str) -> bool:
        """Return whether a thing is one of the everyday goods, or is on the list, open or ticked."""
        if self._is_listed(item):
            return True
        if self.parsed.language is Language.KOREAN:
            return PATTERNS["good_ko"].fullmatch(item) is not None or item.casefold() in GOODS
        # `GOODS` has singulars, and `brown eggs` are eggs.
        last_word = item.casefold().split()[-1].strip(".,!?")
        singulars = {
            last_word,
            last_word.removesuffix("s"),
            last_word.removesuffix("es"),
            f"{last_word.removesuffix('ies')}y",
        }
        return not singulars.isdisjoint(GOODS)

    def _is_listed(self, item: str) -> bool:
        """Return whether the list has exactly this entry, open or ticked."""
        items = self._files.items(self.name, is_needed=False)
        return any(known.text.casefold() == item.casefold() for known in items)

    def _ask_if_unusual(self, items: Sequence[str]) -> None:
        """Raise `AnswerNow` to ask whether to add entries that may not name things to buy: `돈`, `내일 우유`.

        An entry is unusual if it is not on the list yet and none of the everyday goods. The person is asked
        about unusual entries of a statement that something is missing (slot `stated`), and in Korean about
        any unusual ones that look like part of a sentence. After words such as `다 먹었어` ("we have eaten it
        all", slot `asked`) the person is asked about usual entries, too, unless all are on the list. Do
        nothing for to-dos, or if the person has confirmed (slot `sure`).
        """
        if self.name == TODO or self.slot("sure"):
            return
        is_stated = bool(self.slot("stated"))
        is_korean = self.parsed.language is Language.KOREAN
        unusual = [
            item
            for item in items
            if not self._is_usual(item) and (is_stated or (is_korean and has_more_than_name(item)))
        ]
        if unusual or (self.slot("asked") and not all(map(self._is_listed, items))):
            self.parsed = self.parsed.having(items="\n".join(items), list=self.name)
            raise self.question("sure", self.say("sure_add", items=", ".join(items)))

    def _put_back(self) -> str:
        """Add entries again that were removed, and tick those that were ticked; return the answer.

        The slot `done` has an `x` for each entry that was ticked, and a blank for another one.
        """
        items = self.slot("items").splitlines()
        # The slot may be empty or too short: then the remaining entries were not ticked.
        ticks = self.slot("done").ljust(len(items))
        for item, tick in zip(items, ticks, strict=False):
            self._files.add(self.name, [item])
            if tick == "x":
                self._files.tick(self.name, self._files.find(self.name, [item]), is_done=True)
        self._record_undo("remove_items", items="\n".join(items))
        return self.say("put_back", items=", ".join(items))

    # Changing

    def _change(self) -> str:
        """Tick, untick, remove or move the entries that the request names, as the intent says.

        The slot `to` names the list to which entries are moved; it is empty for other intents. Nothing is
        changed unless each of the entries is found. Returns the answer.
        """
        intent, target_list = self.parsed.intent, self.slot("to")
        found = self._files.find(self.name, self._items(), is_done=intent == "untick")
        texts = [item.text for item in found]
        if intent in ("finish", "untick"):
            self._tick(found)
        elif not target_list:
            self._take_out(found)
        elif not self._files.is_same(self.name, target_list):
            # Added first: no entry is lost if the other list cannot be used.
            added = self._files.add(target_list, texts)
            self._take_out(found)
            if added.new:
                # Recorded last, so undone first: the entries leave that list before they return to this one.
                self._record_undo("remove_items", list=target_list, items="\n".join(added.new))
        form = "list_done" if intent == "finish" else intent
        return self.say(form, item=", ".join(texts), to=self._named(target_list))

    def _tick(self, ticked: Sequence[Item]) -> None:
        """Tick entries, or untick them if the intent is not `finish`; record how to undo it."""
        is_done = self.parsed.intent == "finish"
        self._files.tick(self.name, ticked, is_done=is_done)
        for item in ticked:
            self._record_undo("untick" if is_done else "finish", item=item.text, kind="item", label=item.text)

    def _take_out(self, removed: Sequence[Item]) -> None:
        """Remove entries from the list, and record how to put them back."""
        self._files.take_out(self.name, removed)
        if removed:
            ticks = "".join("x" if item.is_done else " " for item in removed)
            self._record_undo("put_back", items="\n".join(item.text for item in removed), done=ticks)

    def _items(self) -> list[str]:
        """Return the words for each entry that the request names.

        Several are returned only if the words as a whole are no entry, and each part of them is one. Raises
        `AnswerNow` to ask whether a misspelt entry is meant, or whether a number that was not shown means the
        entry with that number.
        """
        whole, texts = self.slot("item"), [item.text for item in self._files.items(self.name)]
        self._ask_if_not_shown(whole)
        parts = [PATTERNS["the"].sub("", part) for part in entries(whole, self.parsed.language)]
        folded = [text.casefold() for text in texts]  # `has_words` never finds an entry of one letter
        found = [
            part
            for part in parts
            if part.casefold() in folded or any(has_words(text, part) for text in texts)
        ]
        is_whole = whole.isdecimal() or whole.casefold() in folded
        misspelt = [] if found or is_whole else [text for text in texts if fits_despite_slips(whole, text)]
        if misspelt:  # `choose` always raises here, as it is not sure
            options = [self.option(f"'{text}'", item=text, list=self.name) for text in misspelt]
            self.choose(options, "which_task", is_sure=False)
        are_several = not is_whole and len(parts) > 1 and len(found) == len(parts)
        return parts if are_several else [whole]

    def _ask_if_not_shown(self, number: str) -> None:
        """Raise `AnswerNow` to ask whether a number means the entry with that number on this list.

        Do nothing for other words, if the list was named, if it was the one shown last, or if it has no such
        open entry.
        """
        shown = self.context.state.shown.get(number)
        was_shown = shown is not None and (shown.kind, shown.list) == ("item", self.name)
        if not number.isdecimal() or was_shown or self.slot("list"):
            return
        labels = [entry.label for entry in self._entries_of(self.name) if entry.id == number]
        if labels:
            options = [self.option(f"'{text}'", item=text, list=self.name) for text in labels]
            self.choose(options, "which_task", is_sure=False)

    def _clear(self) -> str:
        """Remove the entries that the slot `items` names, or without names those that are done.

        The intent `clear_list` removes all. It first raises a question, which puts the texts of all entries
        into `items`. Returns the answer.
        """
        intent, present = self.parsed.intent, self._files.items(self.name)
        if intent == "clear_list" and not present:
            return self.say("list_empty")
        if intent == "clear_list" and not self.slot("sure"):
            all_texts = "\n".join(item.text for item in present)
            self.parsed = self.parsed.of("clear_list", list=self.name, items=all_texts)
            raise self.question("sure", self.say("sure_clear", count=len(present)))
        # Entries that were added after the question stay.
        named = {text.casefold() for text in self.slot("items").splitlines()}
        removed = [item for item in present if (item.text.casefold() in named if named else item.is_done)]
        self._take_out(removed)
        return self.say(intent, count=len(removed), items=", ".join(item.text for item in removed))

    _clear_done = _clear_list = _remove_items = _clear

    def _record_undo(self, inverse: str, **slots: str) -> None:
        """Record the request that undoes a change of the list: its intent is `inverse`, with these slots."""
        self.record_change(self.parsed.of(inverse, **{"list": self.name} | slots))


def _open_count(items: Sequence[Item]) -> int:
    """Return how many entries are open."""
    return sum(not item.is_done for item in items)
