"""What the agent without a model says of the conversation so far."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent_runner.agents.offline import intents
from agent_runner.agents.offline.about import MAX_CHARS, About
from agent_runner.agents.offline.conversation import ConversationState
from agent_runner.agents.offline.handler import RequestContext
from agent_runner.agents.offline.intents import ParsedRequest
from agent_runner.agents.offline.reading import read
from agent_runner.ipc_client import HostClient
from agent_runner.wire.order import Request, RunOrder, TurnOrder
from agent_runner.wire.times import Language
from agent_runner.workspace import Workspace

WORKFLOW = {
    "plans": [
        {"id": "plan_001", "title": "부산 여행", "tasks": [{"id": "task_002", "title": "book the train"}]}
    ]
}


def said(turn: int, role: str, content: str) -> dict[str, Any]:
    return {"id": f"t{turn}.{role[0]}", "role": role, "content": content, "ts": "2026-11-22T09:00:00Z"}


CONTEXT = {
    "memory": {
        "active_plan_id": "plan_001",
        "active_task_id": "task_002",
        "last_decisions": ["We go by train.", "Saturday it is."],
    },
    "conversation": {
        "running_summary": "They compared trains and buses.",
        "recent_window": [
            said(3, "user", "Jane: how long does it take?"),
            said(3, "assistant", "Two hours\nand a half."),
            said(4, "user", "Jane: what were we talking about?"),
            said(4, "assistant", "This is where we were: …"),
            said(5, "user", "Jane: hello\nJane: where were we?"),
        ],
    },
}


def turn(number: int) -> TurnOrder:
    return TurnOrder(run="r", turn=number, kind="chat", prompt="")


def handler_in(root: Path, language: Language, *, number: int) -> About:
    """The handler of a request in a workspace whose snapshots lie in `root/env`."""
    workspace = Workspace(root)
    workspace.snapshots.mkdir(exist_ok=True)
    order = RunOrder(run="r", group="fam", chat_jid="local:fam", turn=turn(number))
    context = RequestContext(
        order=order,
        turn=number,
        workspace=workspace,
        host=HostClient(workspace),
        request=Request(sender="Jane", text="what were we talking about?"),
        now=datetime.now(UTC),
        zone=UTC,
        request_id="r",
        state=ConversationState(),
    )
    return About(ParsedRequest(intent="recall", language=language), context)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("what were we talking about?", Language.ENGLISH),
        ("What were we just talking about", Language.ENGLISH),
        ("what did we talk about last time?", Language.ENGLISH),
        ("what have we been discussing?", Language.ENGLISH),
        ("remind me what we were talking about", Language.ENGLISH),
        ("what was I saying?", Language.ENGLISH),
        ("where were we?", Language.ENGLISH),
        ("where did we leave off?", Language.ENGLISH),
        ("what did we decide?", Language.ENGLISH),
        ("recap please", Language.ENGLISH),
        ("무슨 얘기 하고 있었지?", Language.KOREAN),
        ("우리 무슨 이야기 하고 있었지?", Language.KOREAN),
        ("무슨 얘기 중이었지?", Language.KOREAN),
        ("아까 무슨 얘기했지?", Language.KOREAN),
        ("우리 뭐 하고 있었지?", Language.KOREAN),
        ("어디까지 얘기했지?", Language.KOREAN),
        ("어디까지 했더라?", Language.KOREAN),
        ("우리 뭐 결정했지?", Language.KOREAN),
        ("지금까지 내용 요약해줘", Language.KOREAN),
    ],
)
def test_asking_what_the_talk_was_about_is_understood(text: str, language: Language) -> None:
    (parsed,) = read(text)
    assert (parsed.intent, parsed.language) == ("recall", language)


@pytest.mark.parametrize(
    "text",
    [
        "what are we having for dinner?",
        "what did we pay?",
        "remind me in 5 minutes what we were talking about",
        "where are the keys?",
        "무슨 요일이야?",
        "10분 뒤에 회의 얘기하라고 알려줘",
        "뭐 할 수 있어?",
        "오늘 뭐 있어?",
    ],
)
def test_what_only_sounds_like_it_is_not_taken_for_it(text: str) -> None:
    assert all(parsed.intent != "recall" for parsed in read(text))


async def recalled(root: Path, context: Any, workflow: Any, *, number: int) -> str:
    """Return what is said where the host wrote these two documents."""
    handler = handler_in(root, Language.ENGLISH, number=number)
    (root / "env" / "context.json").write_text(json.dumps(context))
    (root / "env" / "workflow.json").write_text(json.dumps(workflow))
    return await handler.do_recall()


async def test_plan_decisions_summary_and_the_last_words_are_told_and_this_turn_is_not(
    tmp_path: Path,
) -> None:
    told = await recalled(tmp_path, CONTEXT, WORKFLOW, number=5)
    assert told.split("\n\n")[1:] == [
        "*Plan:* 부산 여행, at the task 'book the train'",
        "*Decided:*\n• We go by train.\n• Saturday it is.",
        "*Before:* They compared trains and buses.",
        "*Last said:*\n• Jane: how long does it take?\n• Andy: Two hours and a half.",
    ]


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"memory": None, "conversation": []},
        {"memory": {"active_plan_id": "gone", "last_decisions": "x"}, "conversation": {"recent_window": [1]}},
        {"memory": {"active_plan_id": "bare"}},
    ],
)
async def test_what_is_not_there_is_left_out(context: dict[str, Any], tmp_path: Path) -> None:
    workflow = {"plans": [7, {"id": "other"}, {"id": "bare"}]}
    nothing = intents.say("recall_nothing", Language.ENGLISH)
    assert await recalled(tmp_path, context, workflow, number=1) == nothing


async def test_a_long_message_is_cut(tmp_path: Path) -> None:
    context = {"conversation": {"recent_window": [said(1, "user", "long " * 200)]}}
    told = await recalled(tmp_path, context, {}, number=2)
    assert len(told.splitlines()[-1].removeprefix("• ")) == MAX_CHARS


@pytest.mark.parametrize("content", [None, "", "{", "[]", "null", '{"memory": {}}'])
async def test_where_nothing_is_kept_it_says_so(tmp_path: Path, content: str | None) -> None:
    for language in Language:
        handler = handler_in(tmp_path, language, number=1)
        if content is not None:
            (tmp_path / "env" / "context.json").write_text(content)
        assert await handler.do_recall() == intents.say("recall_nothing", language)


async def test_a_document_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    handler = handler_in(tmp_path, Language.ENGLISH, number=5)
    (tmp_path / "env" / "context.json").mkdir()
    (tmp_path / "env" / "workflow.json").write_text(json.dumps(WORKFLOW))
    empty = await recalled_without_files(tmp_path)
    assert await handler.do_recall() == empty


async def recalled_without_files(root: Path) -> str:
    """Return what is said where the host wrote nothing."""
    other = root / "other"
    other.mkdir()
    return await handler_in(other, Language.ENGLISH, number=5).do_recall()
