"""Worlds on seeds: the whole host in simulated time, with crashes, and the promises as judges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from orchestrator.domain.model_services import OF_DOTENV
from orchestrator.domain.values import ChatJid, Folder, Group
from tests.simulation.__main__ import main
from tests.simulation.additions import SEASONS
from tests.simulation.messenger import Trouble
from tests.simulation.owner import PAGES, OwnerAct
from tests.simulation.people import EXACT, Fault, Plan, Said
from tests.simulation.planted import BUGS, REPOSITORY, Planted
from tests.simulation.services import KINDS, ServiceFault, ServicesPlan
from tests.simulation.undoing import UndoPlan, UndoWorld, killed_at
from tests.simulation.world import MEMORY, Line, World

MAIN = Path(__file__).parent / "__main__.py"

REGRESSIONS: dict[int, str] = {
    5: "the order in which woken groups are looked at depended on the hash of their names",
    1647: "after a failure of power an agent read the empty file that was left of an answer of the host",
    50237: "a container that had begun between two looks of the judge counted as one that had long been idle",
    900021: "a message that an agent sent while Docker did not answer was sent again by the next run",
    226813303: "an hour was passed over while a model service was asked, so that its answer came too late",
}
"""Seeds of worlds that have broken a promise once, and what was wrong."""
OF_UNDO = {
    8: "what an agent did with a fact of the host's was undone, too, and stood in the way",
    204: "a folder that others had filled counted as changed since",
}
"""Seeds of worlds of undo, the first questions of which are tried."""
OF_MODELS = {
    23: "nothing but the services goes wrong",
    47: "at times no service works",
    51: "the host is killed, and containers and messengers fail, too",
}
"""Seeds of worlds whose agents ask a model, and in which turns go on at another service."""


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_was_broken_once_is_whole(seed: int) -> None:
    assert World(seed).run().problems == []


@pytest.mark.parametrize("seed", OF_MODELS)
def test_what_is_asked_is_answered_where_model_services_fail(seed: int) -> None:
    outcome = World(seed).run()
    assert (outcome.problems, outcome.moves > 0) == ([], True)


@pytest.mark.parametrize("seed", OF_UNDO)
def test_undo_gives_back_exactly_what_was(seed: int) -> None:
    world = UndoWorld(seed, UndoPlan.drawn(str(seed), turns=5))
    assert world.run().problems == []
    assert world.undos > 0


@pytest.mark.parametrize("step", [20, 45, 70, 110])
def test_a_kill_at_a_step_of_an_undo_leaves_it_done_or_not_done(step: int) -> None:
    world = killed_at(step)
    outcome = world.run()
    assert (outcome.problems, outcome.kills, world.undos) == ([], 2, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_of_a_model_service_has_a_turn_go_on_at_the_next(kind: str) -> None:
    fault = ServiceFault(service=OF_DOTENV, kind=kind, at_s=0.0, seconds=150.0)
    services = ServicesPlan(asks_model=True, fallbacks=("spare",), faults=(fault,))
    world = World(kind, _small_plan({5.0: "zq1x", 80.0: BY_TOOL}, services, seconds=160.0))
    outcome = world.run()
    assert outcome.problems == []
    assert (outcome.moves > 0, world.services.asked[-1].fault) == (True, None)


def test_a_call_whose_answer_a_restart_held_up_is_not_made_again_by_the_next_model() -> None:
    fault = ServiceFault(service=OF_DOTENV, kind="another format", at_s=15.0, seconds=250.0)
    services = ServicesPlan(asks_model=True, fallbacks=("spare",), faults=(fault,))
    kill = Fault(at_s=9.0, kind="kill", amount=1)
    outcome = World("held up 4", _small_plan({5.0: BY_TOOL}, services, faults=(kill,))).run()
    assert (outcome.problems, outcome.kills, outcome.moves) == ([], 1, 1)


def test_a_call_that_was_made_before_an_outage_is_not_made_again_after_it() -> None:
    fault = ServiceFault(service=OF_DOTENV, kind="no answer", at_s=10.0, seconds=300.0)
    services = ServicesPlan(asks_model=True, faults=(fault,), is_sound=False)
    world = World("outage", _small_plan({5.0: BY_TOOL}, services, seconds=400.0))
    assert world.run().problems == []
    met = [one.fault for one in world.services.asked if not one.is_of_host]
    assert (met[0], met[-1], "no answer" in met) == (None, None, True), "the call is made, then it is out"


def test_a_turn_comes_back_to_the_first_service_from_one_that_does_not_answer() -> None:
    faults = (
        ServiceFault(service=OF_DOTENV, kind="5xx", at_s=0.0, seconds=30.0),
        ServiceFault(service="spare", kind="5xx", at_s=0.0, seconds=290.0),
    )
    services = ServicesPlan(asks_model=True, fallbacks=("spare",), faults=faults, is_sound=False)
    outcome = World("back", _small_plan({5.0: "zq1x"}, services)).run()
    assert (outcome.problems, outcome.moves) == ([], 2)


def test_each_fault_of_a_host_and_its_machine_meets_it_and_no_promise_breaks() -> None:
    faults = (
        Fault(at_s=2.0, kind="second host"),
        Fault(at_s=4.0, kind="kill at a frame", amount=2),
        Fault(at_s=60.0, kind="kill at a send", amount=2),
        Fault(at_s=95.5, kind="power", amount=150),
        Fault(at_s=130.0, kind="full", amount=20),
    )
    said = {5.0: "zq0x", 60.0: "zq1x", 95.0: "zq2x", 131.0: "zq4x"}
    world = World("faults 3", _small_plan(said, ServicesPlan(), faults=faults))
    assert world.run().problems == []
    assert (world.second_hosts, world.kills, world.power_losses) == (1, 3, 1)
    assert world.storage.refused > 0


def test_a_container_that_floods_its_output_costs_no_answer() -> None:
    flood = Fault(at_s=5.9, kind="flood")
    world = World("flood", _small_plan({5.0: "zq0x", 5.1: "zq1x"}, ServicesPlan(), faults=(flood,)))
    assert world.run().problems == []
    assert any("flood" in line.text for line in world.lines if line.kind == "fault")
    assert any("frame.refused" in line.text for line in world.lines if line.kind == "log")


@pytest.mark.parametrize("effects", [2, 9, 18], ids=["its turn begins", "a request", "its container ends"])
def test_a_host_that_is_killed_after_one_of_its_effects_goes_on(effects: int) -> None:
    said = (
        Said(at_s=5.0, who="Jane", jid=CHAT, kind="echo", token="zq0x"),
        Said(at_s=9.0, who="Jane", jid=CHAT, kind="remind", token="zq1x", minutes=1),
    )
    faults = (Fault(at_s=9.0, kind=EXACT, amount=effects),)
    plan = _small_plan({}, ServicesPlan(), seconds=90.0, faults=faults)
    outcome = World("effects", replace(plan, said=said, family="exact")).run()
    assert (outcome.problems, outcome.kills) == ([], 1)


@pytest.mark.parametrize("effects", range(1, 6))
def test_a_host_that_is_killed_after_an_effect_of_a_reminder_tells_it_once(effects: int) -> None:
    said = (Said(at_s=5.0, who="Jane", jid=CHAT, kind="remind", token="zq1x", minutes=1),)
    fault = Fault(at_s=64.0, kind=EXACT, amount=effects)
    plan = replace(_small_plan({}, ServicesPlan(), seconds=90.0, faults=(fault,)), said=said, family="exact")
    world = World("reminder", plan)
    assert (world.run().problems, world.kills) == ([], 1)
    assert sum("⏰" in one.text for messenger in world.messengers for one in messenger.shown) == 1


def test_people_reply_and_react_and_the_owner_asks_over_the_api_after_an_upgrade() -> None:
    said = (
        Said(at_s=40.0, who="Ali", jid=CHAT, kind="reply", token="zq11x"),
        Said(at_s=50.0, who="Ali", jid=CHAT, kind="react", token="zq12x"),
        Said(at_s=90.0, who="Jane", jid=CHAT, kind="sleep", token="zq13x", minutes=240),
    )
    acts = tuple(
        OwnerAct(at_s=30.0 + number, kind=kind, folder="g0", token=f"zq{800 + number}x", minutes=1)
        for number, kind in enumerate(("rename", "once", "reminder"))
    )
    plan = _plain_plan()
    plan = replace(plan, said=(*plan.said, *said), owner=acts, loops=(Folder("g0"),), schema_behind=9)
    world = World("people", plan)
    assert world.run().problems == []
    assert [act.kind for act, _, _ in world.owner.accepted] == ["rename", "once", "reminder"]
    by_kind = {one.said.kind: one.post for one in world.people.all}
    assert by_kind["reply"].quotes
    assert by_kind["react"].sign
    assert any("from version" in line.text for line in world.lines)
    assert any("in 240 minutes" in line.text for line in world.lines if line.kind == "andy")


def test_the_owner_moves_and_cancels_reminders_and_looks_at_the_console_again_after_a_kill() -> None:
    kinds = {10.0: "console", 20.0: "move", 30.0: "cancel", 200.0: "console"}
    acts = tuple(
        OwnerAct(at_s=at_s, kind=kind, folder="g0", token=f"zq{800 + at_s:.0f}x", minutes=1)
        for at_s, kind in kinds.items()
    )
    world = World(
        "owner 1", replace(_plain_plan(), owner=acts, faults=(Fault(at_s=150.0, kind="kill", amount=9),))
    )
    assert world.run().problems == []
    assert (world.kills, world.owner.shown_pages) == (1, 2 * len(PAGES))
    assert [act.kind for act, _ in world.owner.changed] == ["move", "cancel"]
    shown = [one.text for messenger in world.messengers for one in messenger.shown]
    assert [sum(word in text for text in shown) for word in ("zq820x", "zq830x")] == [1, 0]


def test_what_is_under_way_outlasts_an_upgrade_between_two_lives() -> None:
    upgrade = Fault(at_s=9.0, kind="upgrade", amount=6)
    said = (
        Said(at_s=5.0, who="Jane", jid=CHAT, kind="remind", token="zq0x", minutes=1),
        Said(at_s=8.9, who="Jane", jid=CHAT, kind="echo", token="zq1x"),
    )
    plan = replace(_small_plan({}, ServicesPlan(), faults=(upgrade,)), said=said)
    world = World("upgrade", plan)
    assert world.run().problems == []
    assert (world.upgrades, world.kills) == (1, 1)
    assert any("its image was replaced" in line.text for line in world.lines)


def test_no_collection_of_the_host_grows_with_what_it_lives_through() -> None:
    said = {5.0 + 5 * number: f"zq{number}x" for number in range(60)}
    plan = replace(_small_plan(said, ServicesPlan(), seconds=400.0), looks_at_s=(70.0, 380.0))
    world = World("memory", plan)
    assert world.run().problems == []
    (first, _), (last, _) = world.memory
    assert last - first > 40


def test_a_sleep_that_the_chat_has_read_of_counts_though_the_container_died_in_between() -> None:
    said = (Said(at_s=5.0, who="Jane", jid=CHAT, kind="sleep", token="zq1x", minutes=240),)
    plan = replace(_plain_plan(), seconds=120.0, said=said, deaths=(4,), loops=(Folder("g0"),))
    world = World("sleep 4", plan)
    assert world.run().problems == []
    assert (len(world.people.sleeps), world.engine.started) == (1, 2)


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (2, ["dies before its frame 2 is out"]),
        (3, ["dies after its frame 3 is out", "wrote frame 4 in the step of its death, so it is out, too"]),
        (6, ["dies before its frame 6 is out"]),
    ],
)
def test_the_death_of_a_container_is_told_once(frame: int, told: list[str]) -> None:
    said = tuple(
        Said(at_s=5.0 + 4 * number, who="Jane", jid=CHAT, kind="echo", token=f"zq{number}x")
        for number in range(2)
    )
    world = World("frames", replace(_plain_plan(), said=said, deaths=(frame,)))
    assert world.run().problems == []
    lines = [line.text for line in world.lines if " its frame " in line.text or " wrote frame " in line.text]
    assert lines == [f"container c1 of g0 {text}" for text in told]


def test_the_further_lines_of_a_text_are_indented_in_the_story() -> None:
    first, second = str(Line(5.0, 7, "andy", "one\ntwo")).split("\n")
    assert (first.index("one"), second) == (40, " " * 40 + "two")


def test_of_two_equal_answers_the_one_that_was_refused_is_not_said_to_have_arrived() -> None:
    said = tuple(
        Said(at_s=5.0 + 60 * number, who="Jane", jid=CHAT, kind="sleep", token=f"zq{number}x", minutes=240)
        for number in range(4)
    )
    trouble = Trouble(refused=0.4)
    world = World("equal 2", replace(_plain_plan(), said=said, trouble=trouble, loops=(Folder("g0"),)))
    assert world.run().problems == []
    shown = [one.text.split("“")[0] for one in world.messengers[0].shown if "in 240 minutes" in one.text]
    assert len(set(shown)) == 2, "it stands there, and it is said to be missing"


class _WorldWithWriter(World):
    """A world in which a background program writes requests by hand, in place and without a turn."""

    written: tuple[tuple[float, str, str], ...] = ()
    """For each file the virtual seconds at which it is written, its name, and its text."""
    turns: dict[str, int | None]
    """The turn that each text was said in."""

    async def _live(self) -> None:
        for at_s, name, text in self.written:
            path = self.home.ipc / "g0/messages" / name
            self.loop.call_at(at_s, self.disk.write_in_place, path, text)
        await super()._live()
        self.turns = {row["text"]: row["turn_id"] for row in self.rows("SELECT text, turn_id FROM outbox")}


def test_ages_of_an_agents_request_files_are_those_of_the_virtual_clock() -> None:
    whole = {
        word: json.dumps({"type": "message", "text": word, "chatJid": CHAT}) for word in ("early", "late")
    }
    said = {5.0: "zq1x", 36.5: "zq2x"}
    world = _WorldWithWriter("by hand 1", _small_plan(said, ServicesPlan(asks_model=True), seconds=4_000.0))
    partial = world.home.ipc / "g0/messages/.late.json.partial"
    world.written = (
        (35.0, "early.json", whole["early"]),
        (37.0, "late.json", whole["late"]),
        (38.0, partial.name, whole["late"][:20]),
    )
    seen = dict[float, bool]()
    for at_s in (3_000.0, 3_630.0, 3_700.0):
        world.loop.call_at(at_s, lambda at_s=at_s: seen.update({at_s: partial.exists()}))
    assert world.run().problems == []
    assert seen == {3_000.0: True, 3_630.0: True, 3_700.0: False}, "an hour is given to finish a file"
    # Both were read while the second turn ran, and only one was written in it.
    assert world.turns == {"zq1x": 1, "early": None, "zq2x": 2, "late": 2}


def test_a_messenger_may_lose_the_answer_that_a_tool_had_no_room_on_the_disk() -> None:
    jid = ChatJid("flock:g0")
    group = Group(jid=jid, name="Group 0", folder=Folder("g0"))
    said = (Said(at_s=5.0, who="Jane", jid=jid, kind="echo", token=BY_TOOL),)
    plan = _small_plan({}, ServicesPlan(asks_model=True), faults=(Fault(at_s=6.0, kind="disk", amount=20),))
    world = World("no room", replace(plan, groups=(group,), said=said, trouble=Trouble(breaks=1.0)))
    assert world.run().problems == []
    assert any("No space left" in text for text in world.messenger_of(jid).unsure_in(jid))


def test_a_daily_task_comes_once_on_the_day_on_which_clocks_are_changed() -> None:
    act = OwnerAct(at_s=5.0, kind="daily", folder="g0", token="zq800x")
    evening_ms = SEASONS["spring"] + 22 * 3_600_000
    plan = replace(_plain_plan(), owner=(act,), zone="Europe/Berlin", ahead_ms=evening_ms, seconds=4 * 3600.0)
    world = World("spring", plan)
    assert world.run().problems == []
    zone = ZoneInfo("Europe/Berlin")
    (messenger, _) = world.messengers
    moments = [
        datetime.fromtimestamp(one.at_ms / 1000, zone) for one in messenger.shown if "zq800x" in one.text
    ]
    assert [f"{one:%m-%d %H:%M}" for one in moments] == ["03-28 03:30"]


@pytest.mark.parametrize(
    ("season", "clock", "shown"),
    [("spring", "02:30", "03:30 CEST"), ("autumn", "02:30", "02:30 CEST"), ("autumn", "03:30", "03:30 CET")],
)
def test_a_reminder_comes_at_its_time_in_the_night_of_a_change_of_clocks(
    season: str, clock: str, shown: str
) -> None:
    said = (Said(at_s=5.0, who="Jane", jid=CHAT, kind="remind at", token="zq1x", clock=clock),)
    late_ms = SEASONS[season] + 20 * 3_600_000
    plan = replace(_plain_plan(), said=said, zone="Europe/Berlin", ahead_ms=late_ms, seconds=8 * 3600.0)
    world = World("night", plan)
    assert world.run().problems == []
    (post,) = [one for messenger in world.messengers for one in messenger.shown if "⏰" in one.text]
    moment = datetime.fromtimestamp(post.at_ms / 1000, ZoneInfo("Europe/Berlin"))
    assert f"{moment:%H:%M %Z}" == shown


def test_what_is_used_stays_within_its_budget() -> None:
    said = {5.0 + 20 * number: f"zq{number}x" for number in range(8)}
    plan = replace(_small_plan(said, ServicesPlan(asks_model=True)), budget_tokens=100)
    world = World("budget", plan)
    assert world.run().problems == []
    assert any("the budget of all groups" in line.text for line in world.lines)


@pytest.mark.parametrize("jid", ["chirp:g0", "flock:g0"], ids=["with taps", "with numbers"])
def test_the_newest_vote_of_each_person_counts_and_a_poll_ends_at_its_time(jid: str) -> None:
    said = (
        Said(at_s=5.0, who="Jane", jid=jid, kind="poll", token="zq951x"),
        Said(at_s=30.0, who="Ali", jid=jid, kind="vote", token="zq952x", minutes=1),
        Said(at_s=60.0, who="Rosa", jid=jid, kind="vote", token="zq953x", minutes=2),
        Said(at_s=90.0, who="Ali", jid=jid, kind="vote", token="zq954x", minutes=0),
    )
    group = Group(jid=ChatJid(jid), name="Group 0", folder=Folder("g0"))
    plan = replace(_small_plan({}, ServicesPlan(asks_model=True)), groups=(group,), said=said)
    world = World("poll", plan)
    assert world.run().problems == []
    shown = [one.text for messenger in world.messengers for one in messenger.shown]
    assert any('state="ended" answered_by="2"' in text for text in shown)


CHAT = ChatJid("chirp:g0")


def _plain_plan() -> Plan:
    """Return a plan in which one person asks for two words and a reminder, and nothing goes wrong."""
    kinds = ("echo", "remind", "echo")
    said = tuple(
        Said(at_s=5.0 + number, who="Jane", jid=CHAT, kind=kind, token=f"zq{number}x", minutes=1)
        for number, kind in enumerate(kinds)
    )
    return replace(_small_plan({}, ServicesPlan()), said=said)


BY_TOOL = "zq3x"
"""A word that a model says by a tool before its answer."""


def _small_plan(
    said: Mapping[float, str],
    services: ServicesPlan,
    *,
    seconds: float = 300.0,
    faults: tuple[Fault, ...] = (),
) -> Plan:
    """Return a plan of one group, in whose chat words are asked for at these times."""
    return Plan(
        seconds=seconds,
        groups=(Group(jid=CHAT, name="Group 0", folder=Folder("g0")),),
        said=tuple(
            Said(at_s=at_s, who="Jane", jid=CHAT, kind="echo", token=word) for at_s, word in said.items()
        ),
        faults=faults,
        idle_ms=5_000,
        services=services,
    )


@pytest.mark.parametrize(
    ("seed", "asks_model"), [("14", False), ("31", True)], ids=["plain", "of agents that ask a model"]
)
def test_a_seed_gives_the_same_world_in_every_process(seed: str, asks_model: bool) -> None:
    world = World(seed)
    assert world.plan.services.asks_model == asks_model
    assert world.run().digest == _digest_elsewhere(seed)


def _digest_elsewhere(seed: str) -> str:
    """Return the hash of what happens in a world in another process, whose sets have another order."""
    here = os.environ.get("PYTHONHASHSEED")
    with subprocess.Popen(
        [sys.executable, MAIN, "--seed", seed, "--digest"],
        env={**os.environ, "PYTHONHASHSEED": "1" if here != "1" else "2"},
        stdout=subprocess.PIPE,
        text=True,
    ) as elsewhere:
        said, _ = elsewhere.communicate()
    assert elsewhere.returncode == 0
    # Worlds of other processes may be there, with the same digits at another place of their names.
    left = [f"andy-world-{elsewhere.pid}-*", f"andy-world-template-{elsewhere.pid}.db*"]
    assert [path for pattern in left for path in MEMORY.glob(pattern)] == []
    return said.strip()


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_still_fits_the_program(bug: Planted) -> None:
    text = (REPOSITORY / bug.path).read_text(encoding="utf-8")
    assert [text.count(right) for right, _ in ((bug.right, ""), *bug.also)] == [1] * (1 + len(bug.also))


def test_a_bug_that_does_not_fit_an_older_program_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = Planted(name="a bug", path="orchestrator/gone.py", right="right\n", wrong="wrong\n")
    newer = replace(gone, name="another bug", path="orchestrator/app.py", right="a line of tomorrow\n")
    monkeypatch.setattr("tests.simulation.__main__.BUGS", (gone, newer))
    monkeypatch.setattr(sys, "argv", ["simulate", "--planted=all"])
    assert main() == 1
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| a bug | – | not planted: orchestrator/gone.py does not have what it replaces |",
        "| another bug | – | not planted: orchestrator/app.py does not have what it replaces |",
    ]


def test_a_planted_bug_that_nobody_knows_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate", "--planted=no such bug"])
    assert main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_days_in_which_people_seldom_write_keep_every_promise() -> None:
    outcome = World("quiet2").run()
    assert outcome.problems == []
    assert outcome.hours >= 100
    assert outcome.kills >= 5
    assert outcome.digest == _digest_elsewhere("quiet2")
