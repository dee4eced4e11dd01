"""A model that was talked into everything, with a real container's shell; another group is asked beside."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from orchestrator.ipc.rejected_files import MAX_RECORDS
from tests.doubles.messages_api import Recorded, Say, ScriptedMessagesApi, Step, UseTool, last_user_text
from tests.faults.hostile_commands import COMMANDS
from tests.processes.andy import AndyProcess, until
from tests.support.homes import furnish
from tests.support.store_harness import a_group

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]
HONEST_SECONDS = 120
MAX_GROWTH_BYTES = 100 * 1024 * 1024
GROUPS = {
    "planter": ("plant", "forge", "fill"),
    "litterer": ("many",),
    "liar": ("frames",),
    "flooder": ("flood",),
    "bomber": ("bomb",),
}
"""Who runs what. What may cost its container is run in one of its own."""


def decide(request: Recorded) -> Step:
    """Run what the newest message names; then say what came of it."""
    blocks = request.body["messages"][-1]["content"]
    results = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_result"]
    if results:
        return Say(f"Result: {_text_of(results[-1])}")
    named = [name for name in COMMANDS if f"attack {name}" in last_user_text(request)]
    if not named:
        return Say("Nothing to run.")
    return UseTool("Bash", {"command": COMMANDS[named[-1]], "timeout": 90_000, "description": "x"})


def _text_of(result: dict[str, Any]) -> str:
    content = result.get("content", "")
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


class Siege:
    """Andy with its groups; attacks are begun one after another, and asked about later."""

    def __init__(self, andy: AndyProcess) -> None:
        self.andy = andy
        self.asked: dict[str, str] = {}
        self.honest = 0
        self.slowest = 0.0
        self.before = self.most = psutil.Process(andy.pid).memory_info().rss

    def begin(self, name: str, group: str) -> None:
        self.asked[name] = self.andy.say(f"attack {name}", group=group, wait=0)["id"]

    def outcome(self, name: str) -> dict[str, Any]:
        return self.andy.find(self.asked[name])

    def is_over(self, name: str) -> bool:
        """Whether its first attempt is."""
        (turn,) = self.andy.rows("SELECT * FROM turns WHERE id = ?", self.outcome(name)["turn"])
        return turn["state"] in ("answered", "failed") or turn["attempt"] > 1

    def ask_the_honest(self) -> None:
        """The other group has its answer in time, and the host is no bigger than it may be."""
        self.honest += 1
        word = f"word{self.honest}"
        begun = time.monotonic()
        answer = self.andy.say(f"echo {word}", group="honest", wait=HONEST_SECONDS)
        self.slowest = max(self.slowest, time.monotonic() - begun)
        assert answer.get("reply") == word, f"the honest group waits: {answer}"
        self.most = max(self.most, psutil.Process(self.andy.pid).memory_info().rss)

    def lines(self, group: str, kind: str) -> list[dict[str, Any]]:
        """The lines of the host's log on a group of that kind."""
        return [
            line for line in self.andy.logged() if line.get("event") == kind and line.get("group") == group
        ]

    def said_in(self, group: str) -> str:
        rows = self.andy.rows("SELECT text FROM outbox WHERE chat_jid = ?", f"local:{group}")
        return "\n".join(row["text"] for row in rows)


@pytest.fixture(scope="module")
def siege(agent_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    home = tmp_path_factory.mktemp("hostile") / "home"
    honest = a_group("honest", requires_trigger=False, container_config={"agent": "offline"})
    furnish(home, [honest, *(a_group(name, requires_trigger=False) for name in GROUPS)])
    with ScriptedMessagesApi(decide) as api:
        environment = {
            "ANTHROPIC_API_KEY": "sk-ant-api03-key",
            "ANTHROPIC_BASE_URL": api.url,
            "CONTAINER_TIMEOUT": "60000",
            "MAX_CONCURRENT_CONTAINERS": "7",
        }
        with AndyProcess(home, runtime="docker", agent="auto", environment=environment) as andy:
            andy.say("remind me in 3 hours to look", group="honest")
            siege = Siege(andy)
            _attack(siege)
            yield siege


def _attack(siege: Siege) -> None:
    """Have each group do its worst, all at once, and ask the honest one until the last word of each."""
    for group, names in GROUPS.items():
        siege.begin(names[0], group)
    for name in GROUPS["planter"][1:]:
        _ask_until_over(siege, *GROUPS["planter"][:1])
        siege.begin(name, "planter")
        _ask_until_over(siege, name)
    _ask_until_over(siege, "many", "frames", "flood", "bomb")


def _ask_until_over(siege: Siege, *names: str) -> None:
    until(
        lambda: siege.ask_the_honest() or all(siege.is_over(name) for name in names),
        what=f"{names} are over",
        seconds=400,
    )


def test_others_are_answered_all_the_while(siege: Siege) -> None:
    assert siege.honest > len(COMMANDS)
    assert len(siege.said_in("honest").split("word")) - 1 == siege.honest


def test_the_hosts_memory_stays_bounded(siege: Siege) -> None:
    assert siege.most - siege.before < MAX_GROWTH_BYTES


def test_what_is_planted_in_a_mailbox_is_neither_followed_nor_done(siege: Siege) -> None:
    reply = siege.outcome("plant")["reply"]
    for possible in (
        "link: done",
        "hard link: done",
        "fifo: done",
        "directory: done",
        "100 MB: done",
        "deep: done",
    ):
        assert possible in reply, f"the attack itself went wrong: {reply}"
    for impossible in (
        "device",
        "write into input",
        "write into replies",
        "move the mailbox",
        "write into the image",
    ):
        assert f"{impossible}: done" not in reply
    assert "root:" not in siege.said_in("planter") + siege.said_in("main")
    assert "planted" not in siege.said_in("planter")
    refused = siege.lines("planter", "mailbox.refused")
    assert sum(line["count"] for line in refused) >= 12
    assert len(siege.lines("planter", "mailbox.not_understood")) >= 10
    kept = siege.andy.home / "data" / "ipc" / "errors" / "planter"
    assert 0 < len(list(kept.glob("*.reason"))) <= MAX_RECORDS
    assert (
        siege.andy.rows("SELECT 1 FROM commands WHERE group_folder = 'planter' AND type = 'list_reminders'")
        == []
    )


def test_what_is_forged_is_refused_and_the_refusal_recorded(siege: Siege) -> None:
    reply = siege.outcome("forge")["reply"]
    codes = json.loads(reply.partition("Result: ")[2].splitlines()[0])
    assert codes == {
        "another chat": "not_allowed",
        "main by a field": "ok",
        "register": "not_allowed",
        "unregister": "not_allowed",
        "list groups": "not_allowed",
        "the reminder of another": "unknown_reminder",
        "first": "ok",
        "again": "ok",
    }
    rows = siege.andy.rows("SELECT code FROM commands WHERE group_folder = 'planter' AND NOT ok")
    assert [row["code"] for row in rows].count("not_allowed") == 4
    assert "forged" not in siege.said_in("honest")
    assert siege.said_in("main") == ""
    assert "said as main" in siege.said_in("planter"), "who speaks is told by the directory"
    assert "said once" in siege.said_in("planter")
    assert "under a used id" not in siege.said_in("planter")
    pending = "SELECT 1 FROM notifications WHERE status = 'pending'"
    assert siege.andy.rows(pending), "the reminder of another stays"
    assert len(siege.andy.rows("SELECT 1 FROM registered_groups")) == len(GROUPS) + 2


def test_thousands_of_files_cost_their_own_group_time(siege: Siege) -> None:
    assert "True" in siege.outcome("many")["reply"]
    assert len(siege.lines("litterer", "mailbox.refused")) < 1_000, "nor do they flood the log"


def test_scratch_is_bounded(siege: Siege) -> None:
    scratch, own = [int(word) for word in siege.outcome("fill")["reply"].split() if word.isdigit()]
    assert scratch == 256 * 1024 * 1024
    assert own == 64 * 1024 * 1024, "the group's own folder is not bounded, as docs/security.md says"


def test_frames_that_a_shell_forges_stay_with_its_own_group(siege: Siege) -> None:
    others = ("main", "honest", "planter", "bomber", "flooder")
    assert int(siege.andy.rows("SELECT count(*) AS n FROM turns WHERE group_folder = 'liar'")[0]["n"]) == 1
    assert not any("forged for turn" in siege.said_in(group) for group in others)
    sessions = siege.andy.rows("SELECT * FROM sessions")
    assert all(len(row["session_id"]) <= 200 for row in sessions)


def test_a_fork_bomb_stays_in_its_container(siege: Siege) -> None:
    limit = siege.andy.rows("SELECT 1 FROM runs WHERE group_folder = 'bomber'")
    assert limit
    assert len(psutil.pids()) < 2_000


def test_a_hostile_group_is_answered_too_where_it_did_not_hurt_itself(siege: Siege) -> None:
    for name in ("plant", "forge", "fill", "many"):
        assert siege.outcome(name)["outcome"] == "answered"
