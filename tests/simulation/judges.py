"""Judge a world by the promises: what people saw decides, and what is left over when all is quiet."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from orchestrator.domain.values import ChatJid, Folder
from tests.simulation.leftover_judges import left_over
from tests.simulation.loop import START_MS
from tests.simulation.messenger import Post, Trouble
from tests.simulation.owner import WAITS_SECONDS
from tests.simulation.people import ASKING, CHANGING, LASTING, Written, is_poll
from tests.simulation.service_judges import first_tries, services
from tests.simulation.services import is_said_by_tool
from tests.simulation.swarm_judges import swarm
from tests.simulation.text_judges import WORD, lines_of, sentences_of, texts

if TYPE_CHECKING:
    from tests.simulation.owner import OwnerAct
    from tests.simulation.people import Said
    from tests.simulation.world import World

EARLY_MS = 2_000
"""How much earlier than due a reminder may come: times are said in whole seconds."""

UNDELIVERED = ("⚠️ Not delivered", "⚠️ Perhaps not delivered", "⚠️ I could not send", "⚠️ I do not know")
"""The beginnings of Andy's news that a message may not have arrived."""
TOKENS_AN_ANSWER = 40
"""Tokens that one answer of a simulated model uses at the most."""
GROWS_FROM = 0.5
"""Entries for each message from which on a collection counts as one that grows with them."""
MOST_OVERTAKING = 2
"""Turns of other groups that may be begun before one that was asked for earlier: their containers idle."""
RECOVERY_SECONDS = 150.0
"""Seconds from the last misfortune to an answer, at most: a container that hangs is ended after a minute."""
SOON_OVER = ("kill", "power", "hung", "container", "second host", "engine")
"""Kinds of misfortune, or their beginnings, after which all goes on within that time."""
REMINDING = ("remind", "remind at")
"""Kinds of messages that ask for a reminder: a line confirms it, and it comes later."""
ORDERED = ("echo", "list", "long", *REMINDING)
"""Kinds of messages whose answers come in the order in which they were asked."""
CONFIRMED_OTHERWISE = ("it may still do what was asked", "had passed: I say it now")
"""Words of what confirms a reminder without its own: the host was late, or its time was over."""
LATE_SECONDS = 75.0
"""Seconds after which a reminder has come: what a killed host had begun is taken up after a minute."""
RETRIED_SECONDS = 600.0
"""Seconds more where messengers lose texts or are away, or the disk is full: it is tried again."""
REFUSING = ("messenger", "disk", "full")
"""Kinds of misfortune after which a reminder waits for its next try."""
CALM_ANSWER_MS = 12_000
"""How long an answer may take where nothing is amiss and no other group is in the way."""


def judge(world: World) -> None:
    """Add to the problems of a world what breaks a promise."""
    for find in (
        _unlisted, _errors, _loops, left_over, _answers, _order, _reminders, _times_of_day, _promptness,
        _late_reminders, _fairness, _recovery, _news, _isolation, _room, _owners_wishes, _sleeps, _spending,
        _memory, _polls, services, swarm, texts,
    ):  # fmt: skip
        world.problems += find(world)


def _unlisted(world: World) -> Iterator[str]:
    for line in world.refusals.lines:
        yield f"It reached for the real world: {line}"


def _errors(world: World) -> Iterator[str]:
    for context in world.loop.errors:
        yield f"Nobody caught: {context.get('message')} {context.get('exception')!r}"


def _loops(world: World) -> Iterator[str]:
    """No loop breaks, but for a disk that is full or a messenger that was made to break."""
    for line in world.lines:
        is_error = line.kind == "log" and line.text.startswith(("error", "critical"))
        if is_error and " [" in line.text and not _is_explained(world, line.text):
            yield f"Something broke: {line.text}"


def _is_explained(world: World, text: str) -> bool:
    if "a bug of the messenger" in text:
        return True
    return world.faults.had_disk and ("No space left" in text or "StoreError" in text)


def _shown(world: World, jid: str) -> list[str]:
    posts = (post for post in world.messenger_of(jid).shown if post.jid == jid and post.by == "Andy")
    return [post.text for post in posts]


def _said(text: str) -> str:
    """Return a text of Andy's without the news in it of what was not delivered, which quote others."""
    return "\n\n".join(part for part in text.split("\n\n") if not part.lstrip().startswith(UNDELIVERED))


def _has(text: str, token: str) -> bool:
    return re.search(rf"(?<!\w){token}(?!\w)", _said(text)) is not None


def _lines_with(world: World, said: Said) -> list[str]:
    """Return Andy's lines in the chat of what was said that have its word, oldest first."""
    lines = (line for text in _shown(world, said.jid) for line in lines_of(text))
    return [line for line in lines if said.token in WORD.findall(line)]


def _perhaps_lost(world: World, jid: str) -> list[str]:
    """Return the texts to a chat that the messenger has lost, or that the host may not send again."""
    messenger = world.messenger_of(jid)
    if messenger.is_idempotent:
        return messenger.unsure_in(jid)
    # A host that was killed in the midst of a send may not send again where a text could stand there twice.
    unknown = world.rows("SELECT text FROM outbox WHERE state = 'unknown' AND chat_jid = ?", jid)
    return messenger.unsure_in(jid) + [row["text"] for row in unknown]


def _is_unsure(world: World, written: Written) -> bool:
    """Return whether the messenger itself is why an answer may be missing."""
    return any(written.said.token in text for text in _perhaps_lost(world, written.said.jid))


def _had_no_room(world: World, jid: str) -> bool:
    """Return whether the disk was full, and the agent said so to a chat, even if the messenger lost that."""
    texts = _shown(world, jid) + world.messenger_of(jid).unsure_in(jid)
    return world.faults.had_disk and any("No space left" in text for text in texts)


def _may_be_repeated(world: World, written: Written) -> bool:
    """Return whether a model did by a tool what was asked, in a turn that lost its container.

    What it had done by then may be done again or be left out: only where a turn has moved it is passed on.
    """
    said = written.said
    if not world.plan.services.asks_model or not (said.kind == "remind" or is_said_by_tool(said.token)):
        return False
    return _is_begun_again(world, written)


def _is_begun_again(world: World, written: Written) -> bool:
    """Return whether the turn of what was said lost a container."""
    said = written.said
    rows = world.rows(
        "SELECT t.attempt, t.restarts FROM messages m JOIN turns t ON t.id = m.turn_id"
        " WHERE m.chat_jid = ? AND m.id = ?",
        said.jid,
        f"p{written.post.number}",
    )
    return any(row["attempt"] > 1 or row["restarts"] > 0 for row in rows)


def _turn_of(world: World, written: Written) -> tuple[str, str]:
    rows = world.rows(
        "SELECT m.ignored_reason, t.state, t.reason FROM messages m LEFT JOIN turns t ON t.id = m.turn_id"
        " WHERE m.chat_jid = ? AND m.id = ?",
        written.said.jid,
        f"p{written.post.number}",
    )
    if not rows:
        return "lost", ""
    row = rows[0]
    return row["state"] or "ignored", row["reason"] or row["ignored_reason"] or ""


def _answers(world: World) -> Iterator[str]:
    """One outcome a message: answered once, ignored with a reason, or failed and told once."""
    for written in world.people.all:
        if (problem := _problem_of(world, written)) is not None:
            yield problem


def _problem_of(world: World, written: Written) -> str | None:
    said = written.said
    state, reason = _turn_of(world, written)
    seen = _lines_with(world, said)
    if said.kind in CHANGING:
        is_twice = len(seen) > 1
        return f"Answered {len(seen)} times: {said} → {seen}" if is_twice else None
    if said.kind == "vote":
        return None  # it is stored with its poll, or as a change of an earlier one
    if state == "lost":
        return f"Lost: {said}"
    if said.kind == "poll":
        return None  # what people see of it is judged by itself
    if said.kind not in ASKING:
        return f"Nobody asked, and it was answered: {said} → {seen}" if seen else None
    if state == "ignored":
        return f"Ignored ({reason}): {said}"
    # That a failure is told once is judged for its whole chat.
    return _problem_of_answer(world, written, seen) if state != "failed" else None


def _problem_of_answer(world: World, written: Written, seen: list[str]) -> str | None:
    """Return what is wrong with the answer, among the lines with its word; of a reminder what confirms it."""
    said = written.said
    if said.kind in REMINDING:
        known = sentences_of(world, said)
        texts = "\n".join((*_shown(world, said.jid), *_perhaps_lost(world, said.jid)))
        if "answer" not in known or any(words in texts for words in CONFIRMED_OTHERWISE):
            return None
        seen = [line for line in seen if re.fullmatch(known["answer"], line)]
    elif _may_be_repeated(world, written):
        return None
    if not seen and not _is_unsure(world, written) and not _had_no_room(world, said.jid):
        return f"Not answered: {said}"
    return f"Answered {len(seen)} times: {said} → {seen}" if len(seen) > 1 else None


def _order(world: World) -> Iterator[str]:
    """Answers of a chat, and what confirms its reminders, come in the order of what was asked."""
    for jid in {written.said.jid: None for written in world.people.all}:
        lines = [line for text in _shown(world, jid) for line in lines_of(text)]
        last, before = -1, ""
        for written in world.people.all:
            known = sentences_of(world, written.said)
            if written.said.jid != jid or written.said.kind not in ORDERED or "answer" not in known:
                continue
            if world.plan.services.asks_model and is_said_by_tool(written.said.token):
                continue  # a tool says it before the answers of its turn
            places = [number for number, line in enumerate(lines) if re.fullmatch(known["answer"], line)]
            if not places:
                continue
            if places[0] < last:
                yield f"Answered before what was asked earlier ({before}): {written.said}"
            last, before = places[0], str(written.said)


def _reminders(world: World) -> Iterator[str]:
    """Each reminder comes once and not too early, or its chat is told that it could not be delivered."""
    for written in world.people.all:
        said = written.said
        if said.kind != "remind" or _turn_of(world, written)[0] != "answered":
            continue
        posts = _posts_with(world, written)
        if not posts and (_is_unsure(world, written) or _had_no_room(world, said.jid)):
            continue
        if _may_be_repeated(world, written):
            continue
        told = _reminders_of(posts, said)
        if len(told) > 1:
            yield f"Reminded {len(told)} times: {said} → {[post.text for post in told]}"
        if not told and not _is_excused(world, written):
            yield f"Not reminded: {said} → {[post.text for post in posts]}"
        due_ms = written.post.at_ms + said.minutes * 60_000
        for post in told:
            if post.at_ms < due_ms - EARLY_MS and not world.has_set_clock():
                yield f"Reminded {(due_ms - post.at_ms) / 1000:g} s too early: {said}"


def _reminders_of(posts: list[Post], said: Said) -> list[Post]:
    """Return the posts that remind of something, each as often as it does."""
    return [
        post
        for post in posts
        for line in lines_of(post.text)
        if "⏰" in line and said.token in WORD.findall(line)
    ]


def _times_of_day(world: World) -> Iterator[str]:
    """A reminder for a time of the next day comes once, and not before the clocks of its people show it."""
    for written in world.people.all:
        said = written.said
        if said.kind != "remind at" or _turn_of(world, written)[0] != "answered":
            continue
        zone = ZoneInfo(world.plan.zone)
        day = datetime.fromtimestamp(written.post.at_ms / 1000, zone).date() + timedelta(days=1)
        # By way of UTC, since a time that clocks leave out is as far after the change as it was said to be.
        due = datetime.combine(day, time.fromisoformat(said.clock), zone).astimezone(UTC)
        told = _reminders_of(_posts_with(world, written), said)
        if len(told) > 1:
            yield f"Reminded {len(told)} times: {said} → {[one.text for one in told]}"
        if not told and not _is_excused(world, written) and not _had_no_room(world, said.jid):
            yield f"Not reminded: {said}"
        for post in told:
            seconds = post.at_ms / 1000 - due.timestamp()
            if seconds < -EARLY_MS / 1000 and not world.has_set_clock():
                yield f"Reminded {-seconds:.0f} s too early: {said}"
            if seconds > CALM_ANSWER_MS / 1000 and world.plan.is_calm:
                yield f"Reminded {seconds:.0f} s late, with nothing amiss: {said}"


def _posts_with(world: World, written: Written) -> list[Post]:
    """Return Andy's posts in the chat of a message that have its word, oldest first."""
    said = written.said
    shown = world.messenger_of(said.jid).shown
    return [one for one in shown if one.jid == said.jid and one.by == "Andy" and _has(one.text, said.token)]


def _is_excused(world: World, written: Written) -> bool:
    """Return whether a reminder's chat was told that it was not delivered, or the messenger lost it."""
    quoted = any(written.said.token in text and "⚠" in text for text in _shown(world, written.said.jid))
    return quoted or _is_unsure(world, written)


def _promptness(world: World) -> Iterator[str]:
    """Nothing waits on a poll: with nothing amiss, an answer and a reminder come within seconds."""
    if not world.plan.is_calm or world.plan.services.asks_model:
        return
    # On a node, a signal of a file that is lost costs two sweeps more: the carrier's and the host's.
    most_ms = CALM_ANSWER_MS * (2 if world.plan.nodes else 1)
    for written in world.people.all:
        said, posts = written.said, _posts_with(world, written)
        # An answer may have several texts, each of which comes right after the one before.
        answers = [post for post in posts if "⏰" not in post.text] if said.kind in ASKING else []
        moments = [written.post.at_ms, *(post.at_ms for post in answers)]
        longest_ms = max((late - early for early, late in pairwise(moments)), default=0)
        if longest_ms > most_ms:
            seconds = longest_ms / 1000
            yield f"Answered after {seconds:.1f} s, with nothing amiss: {said}"
        due_ms = written.post.at_ms + said.minutes * 60_000
        for post in posts:
            is_reminder = said.kind == "remind" and "⏰" in post.text
            if is_reminder and post.at_ms - due_ms > CALM_ANSWER_MS + 1_000:
                seconds = (post.at_ms - due_ms) / 1000
                yield f"Reminded {seconds:.1f} s late, with nothing amiss: {said}"


def _late_reminders(world: World) -> Iterator[str]:
    """A reminder comes soon after its time, or after the last misfortune and the start of a host since."""
    plan = world.plan
    if plan.services.asks_model or world.has_set_clock():
        return
    moments = [line.at_s for line in world.lines if line.kind == "fault" or line.text.endswith(" is up")]
    moments += [fault.at_s + fault.amount for fault in plan.faults if fault.kind in LASTING]
    is_retried = plan.trouble != Trouble() or any(fault.kind in REFUSING for fault in plan.faults)
    longest_s = LATE_SECONDS + (RETRIED_SECONDS if is_retried else 0.0)
    for written in world.people.all:
        known = sentences_of(world, written.said)
        due_s, confirmed_s = 0.0, 0.0
        for post in _posts_with(world, written) if written.said.kind == "remind" else ():
            at_s = world.since_start_s(post.at_ms)
            for line in lines_of(post.text):
                if re.fullmatch(known["answer"], line):
                    due_s, confirmed_s = world.since_start_s(_stated_ms(line, plan.zone)), at_s
                elif re.fullmatch(known["reminder"], line) and due_s:
                    since_s = max(due_s, confirmed_s, *(one for one in moments if one < at_s), 0.0)
                    late_s = at_s - since_s
                    if late_s > longest_s:
                        yield f"Reminded {late_s:.0f} s after its time and all misfortune: {written.said}"


def _stated_ms(line: str, zone: str) -> int:
    """Return the time at which a line says that a reminder comes; of a time without seconds its last one."""
    day, clock = line.split(":", 1)[0].split()[-2], re.findall(r"\d\d:\d\d(?::\d\d)?", line)[0]
    # Of a time that the clocks show twice, the later one.
    at = time.fromisoformat(clock).replace(fold=1)
    stated = datetime.combine(date.fromisoformat(day), at, ZoneInfo(zone))
    return int(stated.timestamp() * 1000) + (59_999 if len(clock) == len("09:00") else 0)


def _fairness(world: World) -> Iterator[str]:
    """Check that no chat waits while what other groups asked later is begun, again and again."""
    plan = world.plan
    if plan.faults or any(plan.deaths) or plan.trouble != Trouble() or plan.services.asks_model:
        return
    tries = first_tries(world)
    asked_s: dict[int, float] = {}
    folders: dict[int, str] = {}
    for written in world.people.all:
        for row in world.rows(
            "SELECT t.id, t.group_folder AS folder FROM messages m JOIN turns t ON t.id = m.turn_id"
            " WHERE m.chat_jid = ? AND m.id = ?",
            written.said.jid,
            f"p{written.post.number}",
        ):
            asked_s.setdefault(row["id"], written.at_s)
            folders[row["id"]] = row["folder"]
    begun = {turn: at_s for turn, at_s in tries.items() if turn in asked_s}
    for turn, at_s in begun.items():
        later = [
            other
            for other, other_s in begun.items()
            if folders[other] != folders[turn] and asked_s[other] > asked_s[turn] + 1 and other_s < at_s
        ]
        if len(later) > MOST_OVERTAKING:
            yield f"Turn {turn} of {folders[turn]} was begun after {len(later)} that were asked for later."


def _recovery(world: World) -> Iterator[str]:
    """After a crash, a lost engine or a container that hangs, what was asked is answered, and soon."""
    plan = world.plan
    is_judged = (
        plan.family and not any(plan.deaths) and plan.trouble == Trouble(redelivers=plan.trouble.redelivers)
    )
    if not is_judged or not all(fault.kind.startswith(SOON_OVER) for fault in plan.faults):
        return
    amiss = [line.at_s for line in world.lines if line.kind == "fault" or line.text.endswith(" is up")]
    for written in world.people.all:
        said, posts = written.said, _posts_with(world, written)
        if said.kind not in ASKING:
            continue
        state, reason = _turn_of(world, written)
        if state == "failed":
            yield f"Failed, where it could be tried again ({reason}): {said}"
        for post in posts[:1]:
            at_s = world.since_start_s(post.at_ms)
            last_s = max(one for one in (written.at_s, *amiss) if one < at_s)
            if at_s - last_s > RECOVERY_SECONDS:
                yield f"Answered {at_s - last_s:.0f} s after the last misfortune: {said}"


def _news(world: World) -> Iterator[str]:
    """What a chat reads about a delivery is true: nothing that stands there is said to be missing."""
    for jid in {written.said.jid: None for written in world.people.all}:
        texts, refused = _shown(world, jid), world.messenger_of(jid).unsure_in(jid)
        for text in texts:
            for missing in re.findall(
                r"⚠️ Not delivered, and not tried again: “([^”]+?)(?: \(late\))?…?”", text
            ):
                # The same text may be sent again, as that of a task of each night or of an outage: one is
                # missing, and others stand there.
                (row,) = world.rows(
                    "SELECT count(*) AS n FROM outbox WHERE instr(text, ?) = 1 AND chat_jid = ?", missing, jid
                )
                is_of_many = row["n"] > 1 and any(missing in one for one in refused)
                if not is_of_many and any(missing in _said(other) for other in texts):
                    yield f"Said to be not delivered, and it was: {missing!r} in {jid}"


def _isolation(world: World) -> Iterator[str]:
    """No group sees another's words, neither in its chats nor in its files nor in what its agent is given."""
    groups = {jid: group for group in world.plan.groups for jid in group.chats}
    owners = {one.said.token: groups[ChatJid(one.said.jid)] for one in world.people.all}
    folders = {group.folder: group for group in world.plan.groups}
    owners |= {act.token: folders[Folder(act.folder)] for act in world.plan.owner if act.kind != "rename"}
    # Each text is read once: to look in each for each word takes hours where a thousand groups have spoken.
    for post in (post for messenger in world.messengers for post in messenger.shown):
        # News of what was not delivered and quotes count, too.
        for token in sorted(owners.keys() & set(re.findall(r"\w+", f"{post.text} {post.quoted}"))):
            if post.jid not in owners[token].chats:
                yield f"The words of {owners[token].folder} were seen in {post.jid}: {post.text!r}"
    for folder, token in sorted(world.engine.given_words):
        if token in owners and owners[token].folder != folder:
            yield f"The agent of {folder} was given words of {owners[token].folder}: {token}"
    for group in world.plan.groups:
        for path in _files_of(world, group.folder):
            words = {word.decode() for word in re.findall(rb"\w+", path.read_bytes())}
            if any(owners[token].folder != group.folder for token in owners.keys() & words):
                yield f"The words of another group lie in {path.relative_to(world.home.root)}"


def _files_of(world: World, folder: str) -> Iterator[Path]:
    for above in (world.home.groups, world.home.ipc, world.home.data / "env"):
        for path in sorted((above / folder).rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path


def _room(world: World) -> Iterator[str]:
    """Report more containers at once than there is room for."""
    # As many as may be started ahead may start beside others that are closing. On nodes that are cut off,
    # containers go on that the host has given up.
    room = world.plan.cap + world.plan.foresight
    if world.engine.most_working > room and not world.plan.nodes:
        yield f"{world.engine.most_working} containers worked at once, with room for {room}"


def _owners_wishes(world: World) -> Iterator[str]:
    """Check that a request answered as done was done once, and one without an answer at most once."""
    canceled = {act.token for act, _ in world.owner.changed if act.kind == "cancel"}
    for act, _, _ in world.owner.accepted:
        if act.kind != "rename":
            # One whose end was asked for without an answer may come or not.
            yield from _problems_of_act(world, act, is_sure=act.kind != "cancel")
    for act, at_s in world.owner.changed:
        yield from _problems_of_change(world, act, at_s, is_canceled=act.token in canceled)
    for page in world.owner.broken_pages:
        if not world.faults.had_disk and not world.upgrades:
            yield f"A page of the console was not shown: {page}"
    for act in world.owner.unsure:
        if act.kind != "rename":
            yield from _problems_of_act(world, act, is_sure=False)
    yield from _names(world)


def _problems_of_daily_act(world: World, act: OwnerAct, posts: list[Post], *, is_sure: bool) -> Iterator[str]:
    """Report a task that came twice on a day, or not at half past two of a night without a fault near it."""
    if world.has_set_clock():
        return
    zone = ZoneInfo(world.plan.zone)
    days = [datetime.fromtimestamp(one.at_ms / 1000, zone).date() for one in posts]
    if len(set(days)) != len(days):
        yield f"Done twice on a day: {act} → {[str(one) for one in days]}"
    accepted_s = next((read_s for one, _, read_s in world.owner.accepted if one == act), world.plan.seconds)
    faults_s = [line.at_s for line in world.lines if line.kind == "fault"]
    first_ms = START_MS + world.plan.ahead_ms
    first_day = datetime.fromtimestamp(first_ms / 1000, zone).replace(hour=2, minute=30, second=0)
    for number in range(int(world.plan.seconds // 86_400) + 2):
        night = first_day + timedelta(days=number)
        at_s = world.since_start_s(round(night.timestamp() * 1000))
        is_in_time = accepted_s + 60 < at_s < world.plan.seconds - 600
        is_calm = not any(at_s - 3_600 < fault_s < at_s + 600 for fault_s in faults_s)
        night_ms = round(night.timestamp() * 1000)
        came_s = [world.since_start_s(one.at_ms) for one in posts if abs(one.at_ms - night_ms) < 43_200_000]
        if is_sure and is_in_time and is_calm and not any(0 <= one - at_s < LATE_SECONDS for one in came_s):
            yield f"Not done at {night}, but {came_s}: {act}"


def _problems_of_act(world: World, act: OwnerAct, *, is_sure: bool) -> Iterator[str]:
    group = next(one for one in world.plan.groups if one.folder == act.folder)
    shown = world.messenger_of(group.jid).shown
    posts = [one for one in shown if one.jid == group.jid and one.by == "Andy" and _has(one.text, act.token)]
    if act.kind == "daily":
        yield from _problems_of_daily_act(world, act, posts, is_sure=is_sure)
        return
    if len(posts) > 1:
        yield f"Done {len(posts)} times: {act} → {[one.text for one in posts]}"
    texts = [one.text for one in shown if one.jid == group.jid]
    is_excused = (
        world.faults.had_disk
        or any("⚠" in text or "could not" in text for text in texts)
        or any(act.token in text for text in world.messenger_of(group.jid).unsure_in(group.jid))
        or world.rows(
            "SELECT 1 FROM outbox WHERE state IN ('unknown', 'dead') AND text LIKE ? AND chat_jid = ?",
            f"%{act.token}%",
            group.jid,
        )
    )
    if not posts and is_sure and not is_excused:
        yield f"Accepted and not done: {act}"


def _problems_of_change(world: World, act: OwnerAct, at_s: float, *, is_canceled: bool) -> Iterator[str]:
    """Check that a reminder that was canceled does not come, and one that was moved not before its time."""
    group = next(one for one in world.plan.groups if one.folder == act.folder)
    for post in world.messenger_of(group.jid).shown:
        if post.jid != group.jid or post.by != "Andy" or not _has(post.text, act.token):
            continue
        if is_canceled:
            yield f"Came though it was canceled: {act}"
        elif not world.has_set_clock():
            early_s = at_s + 2 * act.minutes * 60 - WAITS_SECONDS - world.since_start_s(post.at_ms)
            if early_s > 0:
                yield f"Came {early_s:.0f} s before the time it was moved to: {act}"


def _names(world: World) -> Iterator[str]:
    """A group has the last name that the owner was told it has."""
    for group in world.plan.groups:
        acts = [act for act in world.plan.owner if act.kind == "rename" and act.folder == group.folder]
        accepted = [act.token for act, _, _ in world.owner.accepted if act in acts]
        unsure = [act.token for act in world.owner.unsure if act in acts]
        (row,) = world.rows("SELECT name FROM registered_groups WHERE folder = ?", group.folder)
        if accepted and row["name"] not in (accepted[-1], *unsure):
            yield f"{group.folder} was renamed to {accepted[-1]}, and is called {row['name']!r}"


def _sleeps(world: World) -> Iterator[str]:
    """An agent that was told to sleep does not wake by itself before."""
    if world.has_set_clock():
        return
    for written, ended_ms, next_ms in world.people.sleeps:
        sleeps_ms = (next_ms or 0) - ended_ms
        if sleeps_ms < written.said.minutes * 60_000 - EARLY_MS:
            yield f"Sleeps for {sleeps_ms / 60_000:.1f} minutes: {written.said}"
    for written in world.people.all:
        said = written.said
        turns = world.rows(
            "SELECT t.id, t.group_folder AS folder, t.ended_ms"
            " FROM messages m JOIN turns t ON t.id = m.turn_id"
            " WHERE m.chat_jid = ? AND m.id = ? AND t.state = 'answered'",
            said.jid,
            f"p{written.post.number}",
        )
        if said.kind != "sleep" or not turns:
            continue
        (turn,) = turns
        until_ms = turn["ended_ms"] + said.minutes * 60_000 - EARLY_MS
        later = world.rows(
            "SELECT kind, set_by, started_ms FROM cycles WHERE group_folder = ? AND turn_id > ?"
            " ORDER BY started_ms LIMIT 1",
            turn["folder"],
            turn["id"],
        )
        for cycle in later:
            is_reset = world.rows(  # by a turn that was put back and ended later
                "SELECT 1 FROM turns WHERE group_folder = ? AND id <> ? AND ended_ms BETWEEN ? AND ?",
                turn["folder"],
                turn["id"],
                turn["ended_ms"],
                cycle["started_ms"],
            )
            if (
                not is_reset
                and cycle["kind"] == "auto"
                and cycle["set_by"] is not None
                and cycle["started_ms"] < until_ms
            ):
                minutes = (cycle["started_ms"] - turn["ended_ms"]) / 60_000
                yield f"Woke after {minutes:.1f} minutes (by {cycle['set_by']}): {said}"


def _memory(world: World) -> Iterator[str]:
    """Check that no collection of the host grows with the messages that it has lived through."""
    if len(world.memory) < 2:
        return
    (written_before, before), (written, now) = world.memory[0], world.memory[-1]
    for place, count in now.items():
        if count - before[place] >= (written - written_before) * GROWS_FROM:
            yield f"{place} grew from {before[place]} to {count} with {written - written_before} messages."


def _polls(world: World) -> Iterator[str]:
    """Check that each poll stands in its chat once, and that the newest vote of each person counts."""
    is_calm = world.plan.is_calm_but_for_services and world.plan.services.is_sound
    for written in world.people.all:
        if written.said.kind != "poll" or _turn_of(world, written)[0] != "answered":
            continue
        places = [one for one in _posts_with(world, written) if is_poll(one)]
        if len(places) > 1 and not _is_begun_again(world, written):
            yield f"Asked {len(places)} times: {written.said}"
        if not places and is_calm and not world.plan.budget_tokens:
            yield f"Not asked: {written.said}"
    for (key, voter), places in _votes(world).items():
        for row in world.rows("SELECT id, ends_ms FROM polls WHERE message_id = ?", key):
            counted = world.rows(
                "SELECT chosen_json FROM poll_votes WHERE poll_id = ? AND voter = ?", row["id"], voter
            )
            chosen = [json.loads(one["chosen_json"]) for one in counted]
            # The clock decides which of two votes is the newer one, and whether the poll was over.
            is_open = row["ends_ms"] is None and not world.has_set_clock()
            if chosen != [places[-1]] and (is_open or any(one not in places for one in chosen)):
                yield f"{voter} chose {places} in poll {row['id']}, of which {chosen} counts"


def _votes(world: World) -> dict[tuple[str, str], list[list[int]]]:
    """Map each poll's message and each person to the votes, oldest first."""
    found: dict[tuple[str, str], list[list[int]]] = {}
    for written in world.people.all:
        messenger, post = world.messenger_of(written.said.jid), written.post
        if written.said.kind == "vote" and post.quotes:
            key = (messenger.shown[post.quotes - 1].key, f"{messenger.name}:{post.by.lower()}")
            found.setdefault(key, []).append([written.said.minutes])
    return found


def _spending(world: World) -> Iterator[str]:
    """Check that a day's use exceeds its budget by no more than what was in flight."""
    if not world.plan.budget_tokens:
        return
    zone = ZoneInfo(world.plan.zone)
    used: Counter[date] = Counter()
    for row in world.rows("SELECT at_ms, input_tokens + output_tokens AS tokens FROM usage"):
        used[datetime.fromtimestamp(row["at_ms"] / 1000, zone).date()] += row["tokens"]
    most = world.plan.budget_tokens + world.plan.cap * TOKENS_AN_ANSWER
    for day, tokens in used.items():
        if tokens > most and not world.has_set_clock():
            yield f"Used {tokens} tokens on {day}, of a budget of {world.plan.budget_tokens}"
