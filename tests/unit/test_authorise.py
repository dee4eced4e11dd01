"""Main may do everything, others only what concerns themselves."""

from __future__ import annotations

from typing import get_args

import pytest

from agent_runner.wire import mailbox
from orchestrator.domain.values import ChatJid, Folder, Group
from orchestrator.ipc.authorise import ONLY_MAIN, refusal

MAIN = Group(jid=ChatJid("local:main"), name="Main", folder=Folder("main"), is_main=True)
FAMILY = Group(jid=ChatJid("local:family"), name="Family", folder=Folder("family"))

A_TASK = mailbox.ScheduleTask(prompt="water", schedule_type="interval", schedule_value="1h")

OF_A_GROUP = (
    mailbox.ModelMissing(),
    mailbox.SendMessage(text="hi"),
    mailbox.SendMessage(text="hi", chat_jid=FAMILY.jid),
    mailbox.SendFile(path="a.pdf"),
    mailbox.SendFile(path="a.pdf", chat_jid=FAMILY.jid),
    mailbox.ReactToMessage(emoji="👍"),
    mailbox.SendPoll(question="Tea?", options=("Yes", "No")),
    mailbox.SetReminder(text="hi", at="5m"),
    mailbox.CancelReminder(reminder_id=1),
    mailbox.ListReminders(),
    mailbox.SearchHistory(query="milk"),
    mailbox.SearchWeb(query="weather"),
    A_TASK,
    A_TASK.model_copy(update={"target_folder": FAMILY.folder}),
    mailbox.UpdateTask(task_id="t1"),
    mailbox.ActOnTask(type="pause_task", task_id="t1"),
    mailbox.ActOnTask(type="resume_task", task_id="t1"),
    mailbox.ActOnTask(type="cancel_task", task_id="t1"),
    mailbox.ActOnTask(type="run_task", task_id="t1"),
    mailbox.ListTasks(),
    mailbox.UseDashboard(tool="create_task", arguments={"title": "x"}),
    mailbox.ShowDashboard(),
    mailbox.SetNextWake(next="30m"),
    mailbox.Remember(tool="record_decision", arguments={"decision": "tea"}),
    mailbox.NotifySelf(message="look at the oven"),
    mailbox.AcknowledgeNotice(notice_id=1),
    mailbox.ListNotices(),
    mailbox.CancelNotice(notice_id=1),
)
OF_MAIN = (
    mailbox.RegisterGroup(jid="local:x", name="X", folder="x"),
    mailbox.ChangeGroup(folder="family", name="X"),
    mailbox.UnregisterGroup(folder="family"),
    mailbox.RefreshGroups(),
    mailbox.ControlLoop(action="on"),
    mailbox.ChooseModel(model="local/qwen3", target_folder="family"),
)


@pytest.mark.parametrize("command", [*OF_A_GROUP, *OF_MAIN], ids=lambda command: command.type)
def test_main_may_do_everything(command):
    assert refusal(MAIN, command) is None


@pytest.mark.parametrize("command", OF_A_GROUP, ids=lambda command: command.type)
def test_a_group_may_do_what_concerns_itself(command):
    assert refusal(FAMILY, command) is None


@pytest.mark.parametrize("command", OF_MAIN, ids=lambda command: command.type)
def test_groups_are_administered_from_main_alone(command):
    assert refusal(FAMILY, command) == ONLY_MAIN


@pytest.mark.parametrize("jid", [MAIN.jid, "local:work", "", "LOCAL:family"])
def test_a_group_does_not_write_in_another_chat(jid):
    assert refusal(FAMILY, mailbox.SendMessage(text="hi", chat_jid=jid)) is not None
    assert refusal(FAMILY, mailbox.SendFile(path="a.pdf", chat_jid=jid)) is not None


@pytest.mark.parametrize("folder", [MAIN.folder, "work", "Family", ""])
def test_a_group_does_not_schedule_for_another(folder):
    assert refusal(FAMILY, A_TASK.model_copy(update={"target_folder": folder})) is not None


def test_every_command_of_the_wire_is_tried_here():
    union, *_ = get_args(mailbox.Command)
    assert {type(command) for command in (*OF_A_GROUP, *OF_MAIN)} == set(get_args(union))
