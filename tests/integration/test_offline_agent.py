"""The offline agent with a real directory and the real mailbox; the host's side answers by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from agent_runner.agents.offline import OfflineAgent
from agent_runner.ans.event import NoticeEvent
from agent_runner.ans.lazy_notices import LazyNotices
from agent_runner.interfaces import Agent, TurnOutcome
from agent_runner.ipc_client import HostClient
from agent_runner.wire.files import write_whole
from agent_runner.wire.mailbox import (
    ActOnTask,
    CancelReminder,
    Command,
    ListReminders,
    ListTasks,
    ModelMissing,
    NotifySelf,
    RefreshGroups,
    RegisterGroup,
    Reply,
    ScheduleTask,
    SendFile,
    SetReminder,
    ShowDashboard,
    UnregisterGroup,
    parse_command,
)
from agent_runner.wire.notices import Notice
from agent_runner.wire.order import ECHO, Request, RunOrder, TurnKind, TurnOrder
from agent_runner.workspace import Workspace
from tests.support.recorded_events import record_events

NOW = datetime(2026, 11, 22, 0, 20, 15, tzinfo=UTC)  # Sunday 09:20:15 in Seoul


@dataclass
class Harness:
    """The host's side of the mailbox: keeps reminders as a host does and remembers what it was asked."""

    workspace: Workspace
    commands: list[Command] = field(default_factory=list)
    reminders: dict[int, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    board: list[dict[str, Any]] = field(default_factory=list)
    answered: dict[str, Reply] = field(default_factory=dict)
    refusal: str | None = None
    code: str = "ok"

    async def serve(self) -> None:
        while True:
            directories = (self.workspace.tasks, self.workspace.messages)
            for file in sorted(file for one in directories for file in one.glob("*.json")):
                command = parse_command(file.read_bytes())
                file.unlink()
                self._reply(command)
            await asyncio.sleep(0.002)

    def _reply(self, command: Command) -> None:
        assert command.request_id is not None
        if command.request_id not in self.answered:
            self.commands.append(command)
            self.answered[command.request_id] = self._act(command, command.request_id)
        write_whole(
            self.workspace.replies / f"{command.request_id}.json", self.answered[command.request_id].to_json()
        )

    def _act(self, command: Command, request_id: str) -> Reply:
        if self.refusal:
            return Reply(request_id=request_id, ok=False, code="refused", text=self.refusal)
        data: dict[str, Any] = {}
        match command:
            case SetReminder(text=text, at=at):
                data = {
                    "id": len(self.reminders) + 1,
                    "due_ms": int(datetime.fromisoformat(at).timestamp() * 1000),
                }
                self.reminders[data["id"]] = data | {"text": text}
            case CancelReminder(reminder_id=number):
                if self.reminders.pop(number, None) is None:
                    text = f"There is no reminder {number} here."
                    return Reply(request_id=request_id, ok=False, code="unknown_reminder", text=text)
            case ListReminders():
                data = {"reminders": list(self.reminders.values())}
            case RefreshGroups():
                data = {"chats": [{"jid": "12@g.us", "name": "Fam", "folder": None, "channel": "whatsapp"}]}
            case ScheduleTask(prompt=prompt, schedule_type=kind, schedule_value=value):
                data = {"id": f"task-{len(self.tasks) + 1}", "status": "active", "groupFolder": "fam"}
                data |= {"prompt": prompt, "schedule_type": kind, "schedule_value": value}
                self.tasks[data["id"]] = data
            case ActOnTask(type="cancel_task", task_id=task_id):
                del self.tasks[task_id]
            case ListTasks() | ShowDashboard():
                is_board = isinstance(command, ShowDashboard)
                data = {"tasks": self.board if is_board else list(self.tasks.values())}
            case _:
                pass
        return Reply(request_id=request_id, ok=True, code=self.code, text="Done.", data=data)


@dataclass
class Chat:
    """A conversation with the agent."""

    agent: OfflineAgent
    harness: Harness
    noticing: LazyNotices
    turns: int = 0

    async def say(self, *texts: str, sender: str = "Min", kind: TurnKind = "chat", prompt: str = "") -> str:
        self.turns += 1
        requests = tuple(Request(sender=sender, text=text) for text in texts)
        return await self.take(
            TurnOrder(run="r1", turn=self.turns, kind=kind, prompt=prompt, requests=requests)
        )

    async def take(self, turn: TurnOrder) -> str:
        said: list[str] = []

        async def say(text: str) -> None:
            said.append(text)

        assert await self.agent.answer(turn, say) == TurnOutcome()
        assert len(said) <= 1
        return said[0] if said else ""


Open = Callable[..., Any]


@pytest.fixture
def open_chat(tmp_path: Path) -> Open:
    workspace = Workspace(tmp_path)
    for directory in (workspace.group, workspace.tasks, workspace.messages, workspace.replies):
        directory.mkdir(parents=True)

    @asynccontextmanager
    async def open_it(
        *, is_main: bool = False, now: datetime = NOW, zone: str = "Asia/Seoul"
    ) -> AsyncIterator[Chat]:
        turn = TurnOrder(run="r1", turn=0, kind="chat", prompt="")
        order = RunOrder(
            run="r1", group="fam", chat_jid="local:fam", is_main=is_main, timezone=zone, turn=turn
        )
        harness, host = Harness(workspace), HostClient(workspace, reply_seconds=60)
        serving = asyncio.create_task(harness.serve(), name="harness")
        noticing = LazyNotices(order, workspace)
        agent = OfflineAgent(order, workspace, host, noticing, now=lambda: now)
        await agent.start()
        try:
            yield Chat(agent, harness, noticing)
        finally:
            await agent.close()
            serving.cancel()
            host.close()

    return open_it


async def test_it_is_an_agent_without_a_session(open_chat: Open) -> None:
    async with open_chat() as chat:
        agent: Agent = chat.agent
        assert agent.session_id is None


async def test_a_reminder_goes_to_the_host_in_full_and_is_said_back(open_chat: Open) -> None:
    async with open_chat() as chat:
        said = await chat.say("remind me tomorrow at 9am to call mum")
        assert said == "I'll remind you on Mon 2026-11-23 09:00: call mum (reminder 1)."
        [command] = chat.harness.commands
        assert isinstance(command, SetReminder)
        assert command.at == "2026-11-23T09:00:00+09:00"
        assert command.text == "⏰ Reminder for Min: call mum"
        assert command.turn == 1


@pytest.mark.parametrize("filling", [" ", ",", "word "])
async def test_a_message_of_blanks_or_words_without_end_holds_up_no_agent(
    open_chat: Open, filling: str
) -> None:
    # Patterns would take hours for it, and no limit of time ends a pattern.
    long = f"hm{(filling * 65_000)[:65_000]}then"
    async with open_chat() as chat:
        assert await chat.say(long)
        question = await chat.say("remind me to call mum")
        assert question in await chat.say(long), "it is no answer"
        assert "09:00: call mum" in await chat.say("tomorrow at 9am")


async def test_a_korean_reminder_is_set_and_answered_in_korean(open_chat: Open) -> None:
    async with open_chat() as chat:
        said = await chat.say("내일 오전 9시에 약 먹으라고 알려줘", sender="민지")
        assert said == "2026-11-23 (월) 09:00에 알려드릴게요: 약 먹기 (알림 1번)."
        [command] = chat.harness.commands
        assert isinstance(command, SetReminder)
        assert (command.at, command.text) == ("2026-11-23T09:00:00+09:00", "⏰ 민지님 알림: 약 먹기")


@pytest.mark.parametrize(
    ("with_call", "without"),
    [
        ("what's on today @Andy?", "what's on today?"),
        ("show the shopping list, @andy", "show the shopping list"),
        ("오늘 뭐 있어 @Andy야?", "오늘 뭐 있어?"),
        ("help @Andy", "help"),
        ("add butter...@Andy", "add butter..."),
        ("Andy: help", "help"),
        ("andy, what's on today?", "what's on today?"),
        ("Andy: @Andy what's on today?", "what's on today?"),
    ],
)
async def test_a_call_in_or_after_a_wish_is_no_part_of_it(
    open_chat: Open, with_call: str, without: str
) -> None:
    async with open_chat() as chat:
        assert await chat.say(with_call) == await chat.say(without)


async def test_a_text_that_is_asked_for_and_is_a_condition_sets_no_reminder(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.say("remind me")
        await chat.say("if it rains tomorrow at 9am")
        assert chat.harness.commands == []


async def test_an_address_in_a_wish_is_no_call(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.say("remind me tomorrow at 9am to write to ask@andy.example")
        assert "ask@andy.example" in str(chat.harness.commands)


async def test_a_reminder_that_is_sent_late_is_not_promised(open_chat: Open) -> None:
    async with open_chat() as chat:
        chat.harness.code = "sent_late"
        said = await chat.say("remind us in 10 seconds to look up")
        assert said == "I could not be reached until Sun 2026-11-22 09:20:25 had passed: I say it now."
        said = await chat.say("10초 후에 물 마시라고 알려줘")
        assert said == "연락이 닿지 않는 사이에 2026-11-22 (일) 09:20:25이(가) 지나서 지금 알려드려요."


async def test_a_reminder_in_seconds_is_said_to_the_second(open_chat: Open) -> None:
    async with open_chat() as chat:
        assert "Sun 2026-11-22 09:20:25" in await chat.say("remind us in 10 seconds to look up")
        [command] = chat.harness.commands
        assert isinstance(command, SetReminder)
        assert command.text == "⏰ Reminder: look up"


async def test_a_turn_that_is_tried_again_sets_its_reminder_once(open_chat: Open) -> None:
    async with open_chat() as chat:
        requests = (Request(sender="Min", text="remind me in 10 minutes to stretch"),)
        first = await chat.take(TurnOrder(run="r1", turn=7, kind="chat", prompt="", requests=requests))
        again = await chat.take(TurnOrder(run="r2", turn=7, kind="chat", prompt="", requests=requests))
        assert first == again
        assert len(chat.harness.reminders) == 1
        await chat.take(TurnOrder(run="r2", turn=8, kind="chat", prompt="", requests=requests))
        assert len(chat.harness.reminders) == 2


async def test_reminders_are_listed_and_cancelled(open_chat: Open) -> None:
    async with open_chat() as chat:
        assert await chat.say("list reminders") == "There are no reminders."
        await chat.say("remind me at 18:30 to cook")
        assert await chat.say("알림 목록") == "알림:\n1. 2026-11-22 (일) 18:30 · cook"
        assert await chat.say("cancel reminder 1") == "Cancelled: cook."
        assert await chat.say("알림 1 취소") == "알림이 없어요."


@pytest.mark.parametrize("when", ["to 10am", "to 10", "by an hour"])
async def test_a_reminder_without_a_next_time_is_not_moved_and_that_is_said(
    open_chat: Open, when: str
) -> None:
    async with open_chat() as chat:
        # The one run of this task has begun, so the host plans no other.
        chat.harness.tasks["task-1"] = {
            "id": "task-1", "groupFolder": "fam", "prompt": f"{ECHO}⏰ rest", "schedule_type": "once",
            "schedule_value": "2026-11-22T09:20:00+09:00", "status": "active", "next_run": None,
        }  # fmt: skip
        assert "Move this one?" in await chat.say(f"move the reminder to rest {when}")
        assert "Say when it shall come from now on" in await chat.say("yes")


async def test_a_deadline_in_the_hour_that_comes_twice_is_late_when_it_has_passed(open_chat: Open) -> None:
    now = datetime(2026, 10, 25, 0, 45, tzinfo=UTC)  # 02:45 in Berlin, before its clocks are put back
    task = {"progress": 0, "blocked": False, "blocker_note": None, "tags": [], "created_at": None}
    async with open_chat(now=now, zone="Europe/Berlin") as chat:
        chat.harness.board = [
            task | {"id": "1", "title": "paint", "deadline": "2026-10-25T02:30:00+01:00"},
            task | {"id": "2", "title": "bake", "deadline": "2026-10-25T02:30:00+02:00"},
            task | {"id": "3", "title": "sweep", "deadline": "2026-10-25"},
            task | {"id": "4", "title": "dust", "deadline": None},
        ]
        late = await chat.say("what's late?")
    assert [title for title in ("paint", "bake", "sweep", "dust") if title in late] == ["bake"]


async def test_a_time_that_cannot_be_is_refused_without_asking_the_host(open_chat: Open) -> None:
    async with open_chat() as chat:
        assert "That time is past (Sun 2026-11-22 08:00)" in await chat.say("remind me today at 8:00 to run")
        assert "오전인가요, 오후인가요?" in await chat.say("내일 3시에 약 먹으라고 알려줘")
        assert chat.harness.commands == []


async def test_a_span_before_an_event_that_is_too_long_is_refused_as_that_and_another_time_is_asked_for(
    open_chat: Open,
) -> None:
    async with open_chat() as chat:
        answer = await chat.say("remind me 999 weeks before the meeting at 3pm")
        assert answer.startswith("That is more than ten years away: too far for me. When, then?")
        assert chat.harness.commands == []
        assert "14:30" in await chat.say("today at 2:30pm")
        set_for = [one.at for one in chat.harness.commands if isinstance(one, SetReminder)]
        assert set_for == ["2026-11-22T14:30:00+09:00"]


async def test_no_minutes_before_an_event_is_the_time_of_the_event(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.say("remind me 0 minutes before the meeting at 3pm")
        set_for = [one.at for one in chat.harness.commands if isinstance(one, SetReminder)]
        assert set_for == ["2026-11-22T15:00:00+09:00"]


async def test_a_refusal_of_the_host_is_told_as_it_is(open_chat: Open) -> None:
    async with open_chat() as chat:
        chat.harness.refusal = "There are 500 reminders already: cancel some first."
        assert await chat.say("remind me in 5 minutes to go") == chat.harness.refusal
        assert await chat.say("알림 목록") == chat.harness.refusal
        assert chat.harness.refusal in await chat.say("what's on today?")


@pytest.mark.parametrize(
    ("text", "kind_word"),
    [("add milk to the shopping list", "Sorry, I may not do that"), ("할 일 추가: 벽 칠하기", "죄송해요.")],
)
async def test_nothing_is_promised_to_whom_it_is_not_done_for(
    open_chat: Open, text: str, kind_word: str
) -> None:
    def turn(number: int, said: str, files: str) -> TurnOrder:
        asked = Request.model_validate({"sender": "Gil", "text": said, "files": files})
        return TurnOrder(run="r1", turn=number, kind="chat", prompt="", requests=(asked,))

    async with open_chat() as chat:
        for number, files in enumerate(("none", "read"), start=1):
            assert (await chat.take(turn(number, text, files))).startswith(kind_word)
        assert (await chat.take(turn(3, "lists", "none"))).startswith("Sorry")
        assert (await chat.take(turn(4, "lists", "read"))).startswith("There are no lists yet")
        assert "no " not in (await chat.take(turn(5, text, "write")))[:3]


async def test_stop_is_understood_where_nothing_runs(open_chat: Open) -> None:
    async with open_chat() as chat:
        assert (await chat.say("stop")).startswith("I asked nothing just now")


async def test_several_requests_are_answered_in_one_text_in_order(open_chat: Open) -> None:
    async with open_chat() as chat:
        said = await chat.say("todo buy stamps", "할 일 보여줘", "echo done")
        assert said == "Added to the to-do list: buy stamps.\n\n할 일 목록에 남은 것:\n1. buy stamps\n\ndone"


async def test_lists_are_kept_as_files_of_the_group(open_chat: Open) -> None:
    async with open_chat() as chat:
        assert (
            await chat.say("add milk, eggs to the shopping list") == "Added to the shopping list: milk, eggs."
        )
        assert await chat.say("add milk to the shopping list") == "Already on the shopping list: milk."
        assert await chat.say("done 1 on the shopping list") == "Done on the shopping list: milk."
        assert await chat.say("show the shopping list") == "Open on the shopping list:\n2. eggs"
        assert await chat.say("remove eggs from the shopping list") == "Removed from the shopping list: eggs."
        assert await chat.say("우유 장보기 목록에 추가") == "장보기 목록에 추가했어요: 우유."
        assert await chat.say("lists") == "Lists:\n• the shopping list: 0 open\n• the 장보기 list: 1 open"
        files = chat.harness.workspace.group / "lists"
        assert (files / "shopping.md").read_text() == "# shopping\n\n- [x] milk\n"


async def test_a_list_that_cannot_be_used_is_said_so(open_chat: Open) -> None:
    async with open_chat() as chat:
        assert (await chat.say("show todo")).startswith("The to-do list doesn't exist yet.")
        assert "letters, digits, spaces" in await chat.say("add x to the ../../etc list")
        assert "nothing open like 'tea'" in await chat.say("todo milk", "done tea")


@pytest.mark.parametrize(
    "request_text",
    [
        "move milk from the shopping list to the A&B list",
        "move milk from the shopping list to the party! list",
        f"move milk from the shopping list to the {'x' * 90} list",
        "move eggs and milk from the shopping list to the party list",
        "remove eggs and milk from the shopping list",
        "tick eggs and milk on the shopping list",
        "move milk from the shopping list to the shopping list",
    ],
)
async def test_a_request_that_cannot_be_carried_out_whole_changes_no_list(
    open_chat: Open, request_text: str
) -> None:
    async with open_chat() as chat:
        is_whole = "eggs" not in request_text
        await chat.say(f"add eggs, {'milk' if is_whole else 'oat milk, cow milk'} to the shopping list")
        files = chat.harness.workspace.group / "lists"
        before = (files / "shopping.md").read_text()

        answer = await chat.say(request_text)

        assert (files / "shopping.md").read_text() == before, answer
        assert [file.name for file in files.iterdir()] == ["shopping.md"]


async def test_entries_are_still_there_if_the_other_list_leads_out_of_the_group(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.say("add milk to the shopping list")
        group = chat.harness.workspace.group
        (group / "lists" / "party.md").symlink_to(group.parent / "outside.md")
        await chat.say("move milk from the shopping list to the party list")
        assert await chat.say("show the shopping list") == "Open on the shopping list:\n1. milk"


async def test_an_entry_moves_only_once_between_two_names_of_one_list(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.say("add milk to the shopping list")
        (chat.harness.workspace.group / "lists" / "party.md").symlink_to("shopping.md")
        await chat.say("move milk from the shopping list to the party list")
        assert await chat.say("show the shopping list") == "Open on the shopping list:\n1. milk"


async def test_several_moved_entries_come_back_together(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.say("add eggs, milk, tea to the shopping list", "add milk to the party list")
        moved = await chat.say("move eggs and milk from the shopping list to the party list")
        assert moved == "Moved from the shopping list to the party list: eggs, milk."
        assert await chat.say("show the party list") == "Open on the party list:\n1. milk\n2. eggs"

        await chat.say("undo")

        assert "eggs" in await chat.say("show the shopping list")
        assert await chat.say("show the party list") == "Open on the party list:\n1. milk"


async def test_today_is_its_reminders_and_the_open_to_dos(open_chat: Open) -> None:
    async with open_chat() as chat:
        assert "Nothing is on today, Sunday, 22 November 2026" in await chat.say("what's on today?")
        await chat.say(
            "remind me at 18:30 to cook", "remind me tomorrow at 9am to rest", "todo a", "todo b", "done a"
        )
        assert await chat.say("what's on today?") == (
            "Today, Sunday, 22 November 2026:\n\n• 18:30 cook\n\nThe to-do list:\n2. b"
        )
        assert "오늘 (2026년 11월 22일 일요일):" in await chat.say("오늘 뭐 있어?")


async def test_it_tells_the_time_of_the_group(open_chat: Open) -> None:
    async with open_chat() as chat:
        assert await chat.say("what time is it?") == "It's 09:20 (Asia/Seoul), Sunday, 22 November 2026."
        assert await chat.say("오늘 며칠?") == "오늘은 2026년 11월 22일 일요일입니다."


async def test_groups_are_managed_from_main(open_chat: Open) -> None:
    async with open_chat(is_main=True) as chat:
        said = await chat.say("register group 12@g.us as fam named Our Fam", "unregister group fam", "groups")
        assert "Our Fam is registered as 'fam'." in said
        assert "'fam' is no longer registered" in said
        assert "• Fam (12@g.us): not registered" in said
        registered, unregistered, _ = chat.harness.commands
        assert isinstance(registered, RegisterGroup)
        assert (registered.jid, registered.folder, registered.name) == ("12@g.us", "fam", "Our Fam")
        assert isinstance(unregistered, UnregisterGroup)
        assert "can't be done" in await chat.say(f"register group 12@g.us as {'x' * 65}")


async def test_groups_are_not_managed_from_elsewhere(open_chat: Open) -> None:
    async with open_chat() as chat:
        for text in ("groups", "register group 12@g.us as fam", "unregister group fam"):
            assert await chat.say(text) == "Sorry, groups are only managed from the main group."
        assert chat.harness.commands == []
        assert "register group" not in await chat.say("help")


async def test_what_needs_a_model_is_said_so_without_the_owners_words(open_chat: Open) -> None:
    async with open_chat() as chat:
        for text in ("write me a poem", "시 한 편 써줘", "…"):
            said = await chat.say(text)
            assert said.startswith(("I can't do that", "그건 제가 할 수 없어요"))
            assert "KEY" not in said
        assert [type(one) for one in chat.harness.commands] == [ModelMissing], (
            "main is asked to be told once a day"
        )


async def test_in_main_the_mend_is_said_once_a_day(open_chat: Open) -> None:
    async with open_chat(is_main=True) as chat:
        said = [await chat.say(text) for text in ("write me a poem", "sing")]
        assert "ANTHROPIC_API_KEY" in said[0]
        assert ".env" in said[0]
        assert "KEY" not in said[1], "once a day is enough"


async def test_a_task_is_answered_and_other_turns_end_in_silence(open_chat: Open) -> None:
    async with open_chat() as chat:
        assert await chat.say(kind="task", prompt="echo good morning") == "good morning"
        repeated = "⏰ Reminder for Min: call mum, then rest."
        assert await chat.say(kind="task", prompt=ECHO + repeated) == repeated
        assert await chat.say(kind="worker", prompt="look at the tasks") == ""
        assert await chat.say(kind="auto", prompt="you are free") == ""


async def test_nothing_it_does_by_itself_blocks_the_loop(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.group.mkdir()
    texts = (
        "hi",
        "도움말",
        "todo x",
        "show todo",
        "remind me on 30 Feb at 9am to go",
        "lists",
        "what time is it",
    )
    requests = tuple(Request(sender="Min", text=text) for text in texts)
    turn = TurnOrder(run="r1", turn=1, kind="chat", prompt="", requests=requests)
    order = RunOrder(run="r1", group="fam", chat_jid="local:fam", timezone="America/New_York", turn=turn)
    with blockbuster_ctx("agent_runner"):
        noticing = LazyNotices(order, workspace)
        agent = OfflineAgent(order, workspace, HostClient(workspace), noticing)
        await agent.start()
        assert "There is no such day" in await Chat(agent, Harness(workspace), noticing).take(turn)


async def test_a_broken_disk_is_said_and_the_agent_goes_on(open_chat: Open) -> None:
    async with open_chat() as chat:
        chat.harness.workspace.group.rmdir()
        assert "I couldn't read or write the list" in await chat.say("todo buy stamps")
        assert await chat.say("echo still here") == "still here"


@pytest.mark.parametrize(
    "text", ["send me the file notes.txt", "파일 보내 notes.txt", "notes.txt 파일 보내줘"]
)
async def test_a_file_is_sent_by_the_host(open_chat: Open, text: str) -> None:
    async with open_chat() as chat:
        said = await chat.say(text)

        (command,) = chat.harness.commands
        assert isinstance(command, SendFile)
        assert (command.path, command.request_id is not None) == ("notes.txt", True)
        assert "notes.txt" in said


async def test_why_a_file_is_not_sent_is_told(open_chat: Open) -> None:
    async with open_chat() as chat:
        chat.harness.refusal = "'x' is not in your own folder."
        assert await chat.say("send file x") == chat.harness.refusal


def a_note(number: int, text: str, **more: Any) -> Notice:
    return Notice(
        **{
            "id": number,
            "event_type": "agent.self.remind",
            "source": "agent",
            "payload": {"message": text},
            **more,
        }
    )


def turn_with(text: str, *notices: Notice, turn: int = 1) -> TurnOrder:
    asked = (Request(sender="Min", text=text),)
    return TurnOrder(run="r1", turn=turn, kind="chat", prompt="", requests=asked, notices=notices)


def told_of(chat: Chat) -> list[int | None]:
    """What the turn that is open now has told."""
    assert chat.noticing.rules
    return [one.id for one in chat.noticing.rules.notices.delivered]


@pytest.mark.parametrize(
    ("text", "note", "answer"),
    [
        ("remember for next time: the code is 42", "the code is 42", "next time: the code is 42"),
        ("다음에 기억해 줘: 코드는 42", "코드는 42", "적어 두었어요"),
    ],
)
async def test_a_note_to_itself_is_kept_by_the_host_for_good(
    open_chat: Open, text: str, note: str, answer: str
) -> None:
    async with open_chat() as chat:
        assert answer in await chat.say(text)
        (command,) = chat.harness.commands
    assert isinstance(command, NotifySelf)
    assert (command.message, command.persist_cross_session, command.expires_in_hours) == (note, True, 0)


async def test_a_note_that_is_too_long_is_refused_in_words(open_chat: Open) -> None:
    async with open_chat() as chat:
        chat.harness.refusal = "20 notices wait already."
        assert await chat.say("note to self: x") == "20 notices wait already."


async def test_notes_and_facts_are_said_at_the_start_of_a_turn_but_for_what_the_chat_has_read(
    open_chat: Open,
) -> None:
    fact = {"event_type": "host.reply.undelivered", "source": "host"}
    read = {"event_type": "host.notification.delivered", "source": "host", "priority": "low"}
    async with open_chat() as chat:
        turn = turn_with(
            "echo hello",
            a_note(1, "the code is 42"),
            a_note(2, "A reply was not delivered.", priority="high", **fact),
            a_note(3, "Too late, and so never sent.", source="host", event_type="host.notification.expired"),
            a_note(4, "Sent to the chat.", **read),
            a_note(5, "Refused.", source="host", event_type="host.command.refused"),
        )
        chat.noticing.begin_turn(turn, session_id=None)
        assert (await chat.take(turn)).splitlines() == [
            "📝 I made a note of this last time: the code is 42",
            "⚠️ A reply was not delivered.",
            "",
            "hello",
        ]
        assert sorted(told_of(chat), key=str) == [1, 2]


async def test_whatever_counts_as_told_was_said(open_chat: Open) -> None:
    """N-64: more than fits at once, and what awaits the end of a tool, are told at later points."""
    many = [a_note(number, f"number {number}") for number in range(1, 13)]
    awaiting = a_note(13, "the list was read", tool_name="list_reminders")
    async with open_chat() as chat:
        turn = turn_with("list reminders", *many, awaiting)
        chat.noticing.begin_turn(turn, session_id=None)
        said = await chat.take(turn)
        told = told_of(chat)
    assert len(told) == 13
    assert all(f"number {number}\n" in said for number in range(1, 13))
    assert "the list was read\n" in said


async def test_a_turn_that_nobody_asked_for_tells_no_note(open_chat: Open) -> None:
    async with open_chat() as chat:
        turn = TurnOrder(run="r1", turn=1, kind="auto", prompt="look around", notices=(a_note(1, "later"),))
        chat.noticing.begin_turn(turn, session_id=None)
        assert await chat.take(turn) == ""
        await chat.noticing.load()
        assert told_of(chat) == []


async def test_what_it_asks_of_the_host_is_a_call_and_a_refusal_a_failure(open_chat: Open) -> None:
    async with open_chat() as chat:
        events: list[NoticeEvent] = []
        record_events((await chat.noticing.load()).notices, events.append)
        await chat.say("list reminders")
        chat.harness.refusal = "The host is full."
        await chat.say("list reminders")
    assert [event.type for event in events if event.type.startswith("tool.")] == [
        *("tool.call.pending", "tool.call.success", "tool.batch.complete") * 2,
        "tool.call.pending",
        "tool.call.failure",
        "tool.batch.complete",
    ]
    assert events[-2].payload["error_message"] == "The host is full."


async def test_notices_are_not_loaded_before_a_first_answer_that_needs_none(open_chat: Open) -> None:
    async with open_chat() as chat:
        turn = turn_with("list reminders")
        chat.noticing.begin_turn(turn, session_id=None)
        await chat.take(turn)
        assert chat.noticing.rules is None
        rules = await chat.noticing.load()
        assert rules.calls.count == 2, "what went on before is known once they are"
