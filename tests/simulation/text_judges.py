"""Judge what people read word by word: whole sentences, each once, in the chat in which it was asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.domain.errors import OutcomeUnknown
from orchestrator.domain.values import ChatJid
from tests.simulation.services import is_said_by_tool

if TYPE_CHECKING:
    from tests.simulation.people import Said
    from tests.simulation.world import World

WORD = re.compile(r"zq\d+x")
TIME = r"[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?(?:[+-]\d{4})?"
CLOCKS = (
    r"(?: The clocks go (?:forward then and skip the time you named, so I took this one"
    r"|back then and that time comes twice; this is the one at UTC[+-]\d\d:\d\d)\.)?"
)
"""The words that a confirmation adds in a night in which clocks are changed."""
BY_MODEL = r"(?:says|writes|adds|reports) (?:anthropic|spare|near)"
LATE = ("⚠️ This should have come earlier: ", " (late)")
"""The words that may stand before and after a text that comes late."""
FAILED = ("⚠️ I could not answer this:", "⚠️ I cannot answer at the moment:", "⏹️ I was stopped")
"""The beginnings of what a chat reads of a question that is given up."""
NOT_SENT = "⚠️ I could not send "
"""The beginning of what a chat reads of a text that its messenger refused."""
FOR_OWNERS = {
    "⚠️ I cannot answer at the moment:": ("⚠️ I cannot answer: ", "⚠️ The model service "),
    "⚠️ I could not answer this: the budget of all groups": ("⚠️ The budget of all groups ",),
}
"""Causes that only the owner can remove, as a chat reads them, and the beginnings of the owner's notices."""
CUT = re.compile(r"zq\d*(?!\d*x\b)")
"""Matches a person's word that breaks off."""


def texts(world: World) -> Iterator[str]:
    """Yield what breaks a promise about the words that people read."""
    for find in (_sentences, _elsewhere, _partly, _failures, _refused):
        yield from find(world)


def sentences_of(world: World, said: Said) -> dict[str, str]:
    """Map what Andy may say of a message, its answer and its reminder, to a pattern of the whole line."""
    word = said.token
    asks_model = world.plan.services.asks_model
    match said.kind:
        case "echo" | "take back" | "edit" if asks_model and is_said_by_tool(word):
            return {"answer": f"{word}, {BY_MODEL}"}
        case "echo" | "reply":
            return {"answer": word}
        case "take back" | "edit":
            return {"answer": rf"{word}(?: please)?"}
        case "long":
            return {"answer": rf"{word}(?: \d+of\d+)*"}
        case "list" if asks_model:
            return {"answer": f"add {word} to the shopping list"}
        case "list":
            return {"answer": rf"(?:Added to|Already on) the shopping list: {word}\."}
        case "remind" if asks_model:
            return {"reminder": f"⏰ {word}, {BY_MODEL}"}
        case "remind" | "remind at":
            return {
                "answer": rf"I'll remind you on {TIME}: {word} \(reminder \d+\)\.{CLOCKS}",
                "reminder": f"⏰ Reminder for {said.who}: {word}",
            }
        case "poll":
            return {"answer": rf"(?:<poll question=\")?{word}, {BY_MODEL}\?(?:\" .*)?"}
        case _:
            return {}


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of a text of Andy's that tell something, without what says that they come late.

    A line of news quotes what was not delivered, perhaps cut; a judge of its own reads these.
    """
    for line in text.split("\n"):
        told = line.removeprefix(LATE[0]).removesuffix(LATE[1])
        if not told.startswith("⚠️"):
            yield told


def _sentences(world: World) -> Iterator[str]:
    """Each line with a word of a person is a whole sentence that was asked for: none is cut or mixed."""
    known = {act.token: [rf"(?:⏰ Reminder: )?{act.token}"] for act in world.plan.owner}
    for written in world.people.all:
        known[written.said.token] = list(sentences_of(world, written.said).values())
    for messenger in world.messengers:
        for post in messenger.shown:
            for line in lines_of(post.text) if post.by == "Andy" else ():
                words = WORD.findall(line)
                is_known = any(
                    re.fullmatch(pattern, line) for word in words for pattern in known.get(word, ())
                )
                if (words and not is_known) or CUT.search(line):
                    yield f"Read a sentence that nobody asked for in {post.jid}: {line!r}"


def _elsewhere(world: World) -> Iterator[str]:
    """An answer stands in the chat in which it was asked for, and in no other chat of its group."""
    groups = {jid: group for group in world.plan.groups for jid in group.chats}
    for written in world.people.all:
        said = written.said
        for jid in groups[ChatJid(said.jid)].chats:
            for post in world.messenger_of(jid).shown if jid != said.jid else ():
                words = WORD.findall("\n".join(lines_of(post.text)))
                if post.jid == jid and post.by == "Andy" and said.token in words:
                    yield f"Answered in another chat, {jid}: {said} → {post.text!r}"


def _partly(world: World) -> Iterator[str]:
    """An answer that is too long for one text is read whole and in order, each word of it once."""
    for written in world.people.all:
        said, messenger = written.said, world.messenger_of(written.said.jid)
        if said.kind != "long":
            continue
        posts = (one.text for one in messenger.shown if one.jid == said.jid and one.by == "Andy")
        wanted = set(said.numbered)
        seen = [word for text in posts for line in lines_of(text) for word in line.split() if word in wanted]
        unknown = world.rows("SELECT text FROM outbox WHERE state = 'unknown' AND chat_jid = ?", said.jid)
        lost = " ".join(
            [*messenger.unsure_in(said.jid), *(row["text"] for row in unknown if not messenger.is_idempotent)]
        )
        missing = [word for word in said.numbered if word not in seen and word not in lost]
        if seen != sorted(set(seen)) or (seen and missing):
            yield f"Answered only partly, twice or mixed ({len(seen)} of {len(wanted)} words): {said}"


def _failures(world: World) -> Iterator[str]:
    """A question that fails is told once in its chat, and the owner reads of a cause that they can mend."""
    of_owner = [row["text"] for row in world.rows("SELECT text FROM outbox WHERE chat_jid = 'local:main'")]
    for jid in (jid for group in world.plan.groups for jid in group.chats):
        lines = _news(world, jid)
        (row,) = world.rows(
            "SELECT count(*) AS n FROM turns WHERE chat_jid = ? AND kind = 'chat' AND state = 'failed'", jid
        )
        failed, told = row["n"], sum(line.startswith(FAILED) for line in lines)
        if not failed - _lost(world, jid, FAILED) <= told <= failed:
            yield f"Of {failed} questions that failed its chat was told {told} times: {jid}, {lines}"
        for cause, notices in FOR_OWNERS.items():
            if any(one.startswith(cause) for one in lines) and not any(
                one.startswith(notices) for one in of_owner
            ):
                yield f"The owner was not told, and the chat was: {cause} in {jid}"


def _refused(world: World) -> Iterator[str]:
    """Of a text that its messenger refuses, the chat reads once that it is missing."""
    for jid in (jid for group in world.plan.groups for jid in group.chats):
        messenger = world.messenger_of(jid)
        texts = [text for other, text in messenger.refused if other == jid and not text.startswith(NOT_SENT)]
        refused = len(texts)
        told = sum(line.startswith(NOT_SENT) for line in _news(world, jid))
        # A host that was killed as it was refused has tried again, and some of these stand in the chat now.
        # With a messenger that could show them twice it has not: nobody knows whether they arrived, and the
        # chat reads nothing of that.
        unknown = world.rows(
            "SELECT text FROM outbox WHERE state = 'unknown' AND chat_jid = ? AND error = ?",
            jid,
            str(OutcomeUnknown()),
        )
        broken_off = Counter(row["text"] for row in unknown if not messenger.is_idempotent)
        shown = {post.text for post in messenger.shown if post.jid == jid}
        unstored = sum(
            times if text in shown else min(times, broken_off[text]) for text, times in Counter(texts).items()
        )
        if not refused - unstored - _lost(world, jid, (NOT_SENT,)) <= told <= refused:
            yield f"Of {refused} texts that were refused its chat was told {told} times: {jid}, {texts}"


def _news(world: World, jid: str) -> list[str]:
    """Return the lines of Andy's in a chat that begin with a sign."""
    posts = (post for post in world.messenger_of(jid).shown if post.jid == jid and post.by == "Andy")
    return [line for post in posts for line in post.text.split("\n") if line.startswith(("⚠️", "⏹️"))]


def _lost(world: World, jid: str, beginnings: tuple[str, ...]) -> int:
    """Count the texts with these beginnings that a messenger lost: nobody may have read them."""
    messenger = world.messenger_of(jid)
    unknown = world.rows("SELECT text FROM outbox WHERE state = 'unknown' AND chat_jid = ?", jid)
    texts = [*messenger.unsure_in(jid), *(row["text"] for row in unknown if not messenger.is_idempotent)]
    return sum(line.startswith(beginnings) for text in texts for line in text.split("\n"))
