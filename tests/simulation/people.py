"""What people and misfortune do in a world: drawn as a plan, which can be shortened, and then carried out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator.domain.errors import EngineGone, StoreError
from orchestrator.domain.values import ChatJid, Folder, Group
from tests.simulation import swarm_plan
from tests.simulation.additions import with_additions, with_long_answers
from tests.simulation.loop import Process
from tests.simulation.messenger import Post, Trouble
from tests.simulation.owner import OwnerAct
from tests.simulation.services import OPTIONS, ServicesPlan

if TYPE_CHECKING:
    from tests.simulation.world import World

PERSONS = ("Jane", "Ali", "Minsu", "Rosa")
ASKING = ("echo", "remind", "remind at", "list", "reply", "long")
"""Kinds of messages that have an answer."""
EXACT = "kill at an effect"
"""A kill right after the host's n-th effect from a moment on: a commit, a file, a call of the engine, a text.

Between two effects it does not matter when a host is killed, so these few are all the moments there are."""
KILLS_AT = {
    "kill at a send": "as a text is shown",
    "kill at a frame": "after a frame",
    "kill at a turn": "as a turn begins",
    "kill at a request": "after a request",
    EXACT: "after an effect",
}
"""Kinds of kills that wait for something to happen, and when they come."""
LASTING = ("engine", "messenger", "mute", "slow", "disk", "full")
"""Kinds of misfortune whose amount is seconds."""
COURSE_SECONDS = 70.0
"""Virtual seconds after something that are always lived through, so that nothing of its course is leapt over.

People change what they wrote up to 60 seconds later."""
LOOKS_AFTER_SECONDS = 30.0
"""Seconds after which the owner looks whether an agent that was told to sleep does."""
QUIET = "quiet"
"""The beginning of the seed of a quiet world: many groups over days, in which people seldom write."""
QUIET_GROUPS = 20
KILLS_IN_100_HOURS = 5
LONG_WORDS = 150
"""Words of a long answer, each with its number."""
CHANGING = ("take back", "edit")
"""Kinds of messages that ask for an echo and are changed a moment later: they have one answer or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Something that a person writes. `token` is a word that stands in no other message."""

    at_s: float
    who: str
    jid: str
    kind: str
    token: str
    minutes: int = 0
    clock: str = ""
    """For a reminder of the next day: the time on the wall, as people say it."""

    @property
    def text(self) -> str:
        match self.kind:
            case "echo" | "take back" | "edit" | "long":
                return " ".join(("@Andy echo", self.token, *self.numbered))
            case "reply":
                return f"echo {self.token}"
            case "react":
                return "👍"
            case "sleep":
                return f"@Andy sleep for {self.minutes} minutes"
            case "remind":
                return f"@Andy remind me in {self.minutes} minutes to {self.token}"
            case "remind at":
                return f"@Andy remind me tomorrow at {self.clock} to {self.token}"
            case "poll":
                return f"@Andy poll {self.token}"
            case "vote":
                return f"{self.token}: whatever the newest poll asks, number {self.minutes}"
            case "list":
                return f"@Andy add {self.token} to the shopping list"
            case _:
                return f"{self.token} is what I think"

    @property
    def numbered(self) -> list[str]:
        """The words that a long message has besides its own, and that stand in no other message."""
        count = LONG_WORDS if self.kind == "long" else 0
        return [f"{number:03}of{self.token[2:-1]}" for number in range(count)]

    def __str__(self) -> str:
        return f"{self.who} in {self.jid}: {self.text[:80]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A misfortune at a time; `amount` is seconds, steps or milliseconds, as its kind has it."""

    at_s: float
    kind: str
    amount: int = 0
    place: str = ""
    """The messenger that goes down; empty for one that is drawn."""
    again: int = 0
    """For a kill: the steps after which the host is killed once more while it starts; 0 is never."""

    @property
    def course_seconds(self) -> float:
        """Virtual seconds that it may take its course, though the host is up and has nothing to do."""
        if self.kind in (EXACT, *KILLS_AT):
            return 1_600.0  # it waits for something to happen
        return COURSE_SECONDS + (self.amount if self.kind in LASTING else 0.0)

    def __str__(self) -> str:
        return f"{self.kind} ({self.amount})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that happens to a host in a world, but for what it does itself."""

    seconds: float
    groups: tuple[Group, ...]
    said: tuple[Said, ...]
    faults: tuple[Fault, ...]
    deaths: tuple[int, ...] = ()
    """For the containers in the order of their starts: the frame at which each dies, 0 for never."""
    trouble: Trouble = field(default_factory=Trouble)
    cap: int = 5
    foresight: int = 0
    idle_ms: int = 1_800_000
    zone: str = "Asia/Seoul"
    services: ServicesPlan = field(default_factory=ServicesPlan)
    owner: tuple[OwnerAct, ...] = ()
    """A request that the owner makes over the HTTP API."""
    loops: tuple[Folder, ...] = ()
    """The groups whose agents wake by themselves."""
    schema_behind: int = 0
    """So many migrations older than the program is the database that the first host finds."""
    family: str = ""
    """`narrow` or `exact` for worlds of few messages that were drawn so, `crowded` where groups wait for each
    other; empty for all others."""
    ahead_ms: int = 0
    """Milliseconds that the wall clock is ahead as the world begins, so that it is another season."""
    looks_at_s: tuple[float, ...] = ()
    """Virtual seconds at which the host's memory is looked at."""
    budget_tokens: int = 0
    """Tokens that all groups may use in a day; 0 is no bound."""
    nodes: int = 0
    """The machines of the swarm on which containers run; 0 is none, and one engine beside the host."""
    slots: int = 0
    """Containers that a node may have; 0 is no bound."""
    text_chars: int = 0
    """Characters of the longest text that messengers take; 0 is their own limit."""
    age_ms: int = 1_800_000
    """Milliseconds after which a container is replaced between two turns."""

    @classmethod
    def drawn(cls, seed: str) -> Plan:
        """Return the plan of a seed. What may follow a slash in it draws another order, not another plan."""
        seed = seed.partition("/")[0]
        if seed.startswith(QUIET):
            return _quiet(seed)
        plan = cls._drawn_without_services(seed)
        if seed.startswith(swarm_plan.PREFIX):
            return swarm_plan.with_swarm(plan, seed)
        # Drawn apart, so that the worlds that were known before them are as they were.
        near = [one.at_s for one in plan.said]
        services = ServicesPlan.drawn(seed, seconds=plan.seconds, near=near)
        if services.asks_model and services.is_alone:
            plan = replace(plan, faults=(), deaths=(), trouble=Trouble(), cap=5)
        return with_long_answers(with_additions(replace(plan, services=services), seed), seed)

    @classmethod
    def _drawn_without_services(cls, seed: str) -> Plan:
        chance = random.Random(f"{seed}:plan")
        groups = tuple(_groups(chance))
        hours = chance.choice((0.05,) * 4 + (0.1,) * 5 + (0.2,) * 5 + (0.5, 0.5, 2.0, 2.0, 72.0))
        chats = [jid for group in groups for jid in group.chats]
        count = chance.randrange(5, 40)
        moments = sorted(_moments(chance, hours * 3600, count))
        said = tuple(_said(chance, moment, chats, number) for number, moment in enumerate(moments))
        faulty = chance.random() < 0.8
        near = [one.at_s for one in said]
        faults = tuple(sorted(_faults(chance, hours * 3600, near), key=lambda one: one.at_s))
        return cls(
            seconds=hours * 3600,
            groups=groups,
            said=said,
            faults=faults if faulty else (),
            deaths=tuple(chance.choice((0, 0, chance.randrange(1, 12))) for _ in range(60)) if faulty else (),
            trouble=_trouble(chance) if faulty else Trouble(),
            cap=chance.choice((1, 2, 5, 5)),
            foresight=chance.choice((0, 0, 2)),
            idle_ms=chance.choice((5_000, 20_000, 20_000, 300_000)),
            zone=chance.choice(("Asia/Seoul", "Europe/Berlin", "UTC")),
        )

    def next_moment(self, now_s: float) -> float:
        """Return when the next thing of the plan happens, in virtual seconds."""
        acts = (*(said.at_s for said in self.said), *(act.at_s for act in self.owner))
        faults = (*(fault.at_s for fault in self.faults), *(fault.at_s for fault in self.services.faults))
        moments = (self.seconds, *acts, *faults)
        return min((at_s for at_s in moments if at_s > now_s), default=float("inf"))

    def is_amiss(self, now_s: float) -> bool:
        """Return whether something that was said or done a while ago may still have to take its course."""
        return (
            any(said.at_s <= now_s <= said.at_s + COURSE_SECONDS for said in self.said)
            or any(act.at_s <= now_s <= act.at_s + COURSE_SECONDS for act in self.owner)
            or any(one.at_s <= now_s <= one.at_s + one.course_seconds for one in self.faults)
            or any(one.at_s <= now_s <= one.end_s + 150 for one in self.services.faults)
        )

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong, and no group has to wait for another's slot."""
        return self.is_calm_but_for_services and not self.services.faults

    @property
    def is_calm_but_for_services(self) -> bool:
        """Whether nothing but a model service goes wrong, and no group has to wait for another's slot."""
        return not self.faults and not any(self.deaths) and self.trouble == Trouble() and self.cap == 5


def _groups(chance: random.Random) -> Iterator[Group]:
    for number in range(chance.randrange(1, 5)):
        messenger = chance.choice(("chirp", "flock"))
        others = (ChatJid(f"chirp:g{number}b"),) if chance.random() < 0.2 else ()
        yield Group(
            jid=ChatJid(f"{messenger}:g{number}"),
            name=f"Group {number}",
            folder=Folder(f"g{number}"),
            other_chats=others,
        )


def _moments(chance: random.Random, seconds: float, count: int) -> list[float]:
    """Return when people write: in bursts, as they do."""
    found: list[float] = []
    while len(found) < count:
        at = chance.uniform(5, seconds * 0.9)
        for _ in range(chance.choice((1, 1, 2, 5))):
            found.append(at)
            at += chance.choice((0.0, 0.2, 3.0, 40.0))
    return found


def _said(chance: random.Random, at_s: float, chats: list[ChatJid], number: int) -> Said:
    kind = chance.choice(
        ("echo",) * 6 + ("remind",) * 2 + ("list", "list", "talk", "talk", "take back", "edit")
    )
    return Said(
        at_s=at_s,
        who=chance.choice(PERSONS),
        jid=chance.choice(chats),
        kind=kind,
        token=f"zq{number}x",
        minutes=chance.choice((1, 1, 2, 3, 10)),
    )


def _faults(chance: random.Random, seconds: float, near: list[float]) -> Iterator[Fault]:
    for _ in range(chance.randrange(2, 11)):
        # Most misfortune comes while something is going on.
        at = (
            chance.choice(near) + chance.uniform(0, 8)
            if chance.random() < 0.7
            else chance.uniform(0, seconds)
        )
        others = ("engine", "messenger", "mute", "slow", "clock", "disk", "container")
        kind = chance.choice(("kill",) * 8 + others)
        amount = {
            "kill": chance.randrange(1, 400),
            "engine": chance.choice((1, 20, 100, 400)),
            "messenger": chance.choice((2, 30, 400, 1500)),
            "mute": chance.choice((5, 30, 120)),
            "slow": chance.choice((10, 60)),
            "clock": chance.choice((-600_000, -60_000, -1_500, 2_000, 90_000, 7_200_000)),
            "disk": chance.choice((1, 10, 120)),
            "container": 0,
        }[kind]
        again = chance.choice((0, 0, chance.randrange(1, 900))) if kind == "kill" else 0
        yield Fault(at_s=at, kind=kind, amount=amount, again=again)


def _quiet(seed: str) -> Plan:
    """Return the plan of a quiet world, in which timers, sweeps and clean-ups of days have their chance."""
    chance = random.Random(f"{seed}:plan")
    hours = chance.choice((100, 100, 200, 400))
    groups = tuple(
        Group(jid=ChatJid(f"chirp:g{number}"), name=f"Group {number}", folder=Folder(f"g{number}"))
        for number in range(QUIET_GROUPS)
    )
    moments = sorted(chance.uniform(0, hours * 3600) for _ in range(chance.randrange(8)))
    said = tuple(
        Said(
            at_s=at_s,
            who=chance.choice(PERSONS),
            jid=chance.choice(groups).jid,
            kind=chance.choice(("echo", "remind", "remind", "list", "talk")),
            token=f"zq{number}x",
            # Reminders of up to three days, which come while the world lasts.
            minutes=chance.randrange(1, max(2, min(3 * 24 * 60, int(hours * 60 - at_s / 60)))),
        )
        for number, at_s in enumerate(moments)
    )
    kills = (
        Fault(at_s=chance.uniform(0, hours * 3600), kind="kill", amount=chance.randrange(1, 400))
        for _ in range(KILLS_IN_100_HOURS * hours // 100)
    )
    return Plan(
        seconds=hours * 3600.0,
        groups=groups,
        said=said,
        faults=tuple(sorted(kills, key=lambda fault: fault.at_s)),
        idle_ms=chance.choice((5_000, 5_000, 300_000)),
        zone=chance.choice(("Asia/Seoul", "Europe/Berlin", "UTC")),
        ahead_ms=chance.randrange(365) * 24 * 3_600_000,
        owner=tuple(_daily_task(random.Random(f"{seed}:daily"), groups)),
    )


def _daily_task(chance: random.Random, groups: tuple[Group, ...]) -> Iterator[OwnerAct]:
    """Yield, for half of the quiet worlds, that the owner has a task run each night in a group."""
    if chance.random() < 0.5:
        folder = chance.choice(groups).folder
        yield OwnerAct(at_s=chance.uniform(0, 24 * 3_600), kind="daily", folder=folder, token="zq900x")


def _trouble(chance: random.Random) -> Trouble:
    def some(most: float) -> float:
        return chance.choice((0.0, 0.0, chance.uniform(0.01, most)))

    return Trouble(
        lost_before=some(0.3),
        lost_after=some(0.2),
        refused=some(0.05),
        pause=some(0.1),
        hangs=some(0.05),
        breaks=some(0.05),
        redelivers=some(0.9),
    )


def is_poll(post: Post) -> bool:
    """Return whether a post asks people to choose."""
    return post.by == "Andy" and f"\n1. {OPTIONS[0]}" in post.text


@dataclass(slots=True)
class Written:
    """Something that was said, with its post."""

    said: Said
    post: Post
    at_s: float
    """Virtual time."""


class People:
    """Carry out what the plan has people do."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self.all: list[Written] = []
        self.sleeps: list[tuple[Written, int, int | None]] = []
        """Wishes that an agent may sleep, when their turns ended, and until when it was seen to sleep."""

    @property
    def written(self) -> int:
        return len(self.all)

    async def live(self) -> None:
        for said in self._plan.said:
            await asyncio.sleep(max(0.0, said.at_s - self._world.loop.time()))
            post = self._say(said)
            self.all.append(Written(said, post, self._world.loop.time()))
            if said.kind == "sleep":
                self._world.loop.call_later(LOOKS_AFTER_SECONDS, self._look_at_loop, self.all[-1])
            if said.kind in CHANGING:
                # At once, while it is asked, or when it has long been answered.
                messenger = self._world.messenger_of(said.jid)
                change = messenger.delete if said.kind == "take back" else messenger.edit
                self._world.loop.call_later((0.1, 2.0, 60.0)[said.minutes % 3], change, post)

    def _say(self, said: Said) -> Post:
        """Have a person write. Who replies or reacts means the last of Andy, if there is one."""
        messenger = self._world.messenger_of(said.jid)
        if said.kind == "vote" and (poll := self._newest_poll(said.jid)) is not None:
            return messenger.vote(poll, said.who, said.minutes)
        if said.kind not in ("reply", "react"):
            return messenger.write(said.jid, said.who, said.text)
        of_andy = [one.number for one in messenger.shown if one.jid == said.jid and one.by == "Andy"]
        if not of_andy:
            text = f"@Andy {said.text}" if said.kind == "reply" else f"{said.token} is what I think"
            return messenger.write(said.jid, said.who, text)
        sign = said.text if said.kind == "react" else ""
        return messenger.write(said.jid, said.who, said.text, quotes=of_andy[-1], sign=sign)

    def _newest_poll(self, jid: str) -> Post | None:
        """Return the newest poll of Andy's in a chat, whether people tap on it or read it as a text."""
        shown = self._world.messenger_of(jid).shown
        polls = (one for one in reversed(shown) if one.jid == jid and is_poll(one))
        return next(polls, None)

    def _look_at_loop(self, written: Written) -> None:
        """Have the owner look up until when an agent sleeps that was told to sleep, if nothing came after."""
        rows = self._world.rows(
            "SELECT l.next_wake_ms, t.ended_ms FROM messages m JOIN turns t ON t.id = m.turn_id"
            " JOIN loop_state l ON l.group_folder = t.group_folder"
            " WHERE m.chat_jid = ? AND m.id = ? AND t.state = 'answered' AND l.last_end_ms >= t.ended_ms"
            " AND NOT EXISTS (SELECT 1 FROM turns o WHERE o.group_folder = t.group_folder AND o.id <> t.id"
            " AND (o.ended_ms IS NULL OR o.ended_ms > t.ended_ms))",
            written.said.jid,
            f"p{written.post.number}",
        )
        self.sleeps += [(written, row["ended_ms"], row["next_wake_ms"]) for row in rows]

    def is_heard(self) -> bool:
        """Return whether the host has taken in all that was written."""
        return all(one.taken >= len(one.events) for one in self._world.messengers)

    def is_content(self) -> bool:
        """Return whether the host has heard all, and every reminder that was asked for is past its time."""
        if not self.is_heard():
            return False
        # A clock that was set back makes what was asked for before so much later.
        back = sum(max(0, -fault.amount) for fault in self._plan.faults if fault.kind == "clock") / 1000
        now = self._world.loop.time()
        return all(
            one.at_s + (one.said.minutes + 3) * 60 + back < now
            for one in self.all
            if one.said.kind == "remind"
        )


class Faults:
    """Carry out the misfortune of a plan."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self._chance = random.Random(f"{world.seed}:faults")
        self._again: list[int] = []
        self._at: dict[str, list[int]] = {kind: [] for kind in KILLS_AT}
        """For each kind of such a kill: the steps after which the next ones come."""
        self._last_effect = 0
        """The step of the effect that was counted last."""
        self.had_disk = False
        world.engine.on_frame = lambda: self._kill_at("kill at a frame")
        world.on_turn = lambda: self._kill_at("kill at a turn")
        world.on_effect = self._count_effect
        world.disk.on_request = lambda: self._kill_at("kill at a request")
        for messenger in world.messengers:
            messenger.on_show = lambda: self._kill_at("kill at a send")
            messenger.on_shown = world.note_effect
        world.engine.dies_at = list(plan.deaths)
        for messenger in world.messengers:
            messenger.trouble = replace(plan.trouble)

    async def live(self) -> None:
        for fault in self._plan.faults:
            await asyncio.sleep(max(0.0, fault.at_s - self._world.loop.time()))
            self._begin(fault)

    def _begin(self, fault: Fault) -> None:
        world, later = self._world, self._world.loop.call_later
        if fault.kind in ("kill", "power", "upgrade"):
            if fault.kind == "upgrade":
                world.upgrade_at_kill(fault.amount)
            self._kill(fault)
            return
        if fault.kind in ("mute", "hung", "slow", "container", "flood"):
            self._hurt_container(fault)
            return
        world.note("fault", str(fault))
        if world.engine.take_fault(fault.kind, fault.amount):
            return
        if fault.kind in self._at:
            self._at[fault.kind].append(fault.amount)
            return
        match fault.kind:
            case "second host":
                world.start_second_host()
            case "engine":
                world.engine.go_away()
                later(fault.amount, self._engine_back)
            case "messenger":
                named = [one for one in world.messengers if one.name == fault.place]
                (messenger,) = named or [self._chance.choice(world.messengers)]
                messenger.go_down()
                later(fault.amount, messenger.come_up)
            case "clock":
                world.loop.ahead_ms += fault.amount
            case _:
                self._fill_disk(fault)

    def _kill(self, fault: Fault) -> None:
        if fault.again:
            self._again.append(fault.again)
        is_of_power = fault.kind == "power"
        why = {"power": "as the power fails", "upgrade": "to be upgraded"}.get(fault.kind, "")
        self._world.kill_in_steps(fault.amount, why, is_of_power=is_of_power)

    def _fill_disk(self, fault: Fault) -> None:
        """Have the disk be full: files cannot be renamed, and with kind `full` nothing can be committed."""
        self.had_disk = True
        self._world.disk.is_full = True
        self._world.storage.is_full = fault.kind == "full"
        self._world.loop.call_later(fault.amount, self._disk_back)

    def _kill_at(self, kind: str) -> None:
        """Kill the host in the steps that the next fault of a kind says, where one waits."""
        if self._at[kind]:
            self._world.kill_in_steps(self._at[kind].pop(0), KILLS_AT[kind])

    def _count_effect(self) -> None:
        """Kill the host before its next step where this was the effect that a fault waits for."""
        step = self._world.loop.step
        if step == self._last_effect or not (waiting := self._at[EXACT]):
            return  # a step is never cut in two, so all effects of one are the same moment
        self._last_effect = step
        waiting[0] -= 1
        if waiting[0] <= 0:
            waiting.pop(0)
            self._world.kill_in_steps(1, KILLS_AT[EXACT])

    def _hurt_container(self, fault: Fault) -> None:
        world = self._world
        if not (working := world.engine.working):
            return
        container = self._chance.choice(working)
        process = container.process
        world.note("fault", f"{process.name}: {fault}")
        match fault.kind:
            case "container":
                container.end(137)
            case "flood":
                container.flood()
            case "slow":
                process.slowness = 200
                world.loop.call_later(fault.amount, setattr, process, "slowness", 1)
            case "hung":
                process.is_frozen = process.is_hung = True
            case "mute":
                process.is_frozen = True
                world.loop.call_later(fault.amount, self._thaw, process)

    def _thaw(self, process: Process) -> None:
        process.is_frozen = process.is_hung
        self._world.loop.thaw()

    def _engine_back(self) -> None:
        if self._world.engine.is_away:
            self._world.note("fault", "the engine is back")
        self._world.engine.come_back()

    def _disk_back(self) -> None:
        self._world.disk.is_full = self._world.storage.is_full = False

    def kills_while_starting(self) -> int:
        """Return in how many steps the host that starts now is killed; 0 is never."""
        return self._again.pop(0) if self._again else 0

    def end(self) -> None:
        """End all misfortune: from now on the world is kind."""
        world = self._world
        for waiting in (self._again, *self._at.values()):
            waiting.clear()
        world.engine.dies_at = []
        world.engine.end_faults()
        self._disk_back()
        for messenger in world.messengers:
            messenger.trouble = Trouble()
            messenger.come_up()
        for container in world.engine.working:
            container.dies_at = 0
            container.process.slowness = 1
            container.process.is_frozen = container.process.is_hung
        world.loop.thaw()

    def explain_end(self, error: BaseException | None) -> bool:
        """Return whether a host may end by itself now, because of what was done to it."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, EngineGone):  # it says so as it starts, and its service starts it again
            engine = self._world.engine
            return engine.is_away or 0 <= self._world.loop.time() - engine.back_at_s < 1.0
        return self.had_disk and isinstance(error, OSError | StoreError)
