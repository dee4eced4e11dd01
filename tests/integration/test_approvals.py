"""What an agent may do only once its owner has allowed it: who is asked, who decides, how long it holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from orchestrator.domain.network_targets import parse_target
from orchestrator.domain.values import Folder, RunId, TurnId
from orchestrator.groups import registration, settings
from orchestrator.inbound.intake import build_intake
from orchestrator.proxies import approvals, mcp_message
from orchestrator.proxies.approvals import (
    HOLD_MS,
    HOUR_MS,
    LAPSE_MS,
    MAX_QUESTIONS_AN_HOUR,
    MAX_WAITING,
    ApprovalIsOver,
    Approvals,
    Decision,
    UnknownApproval,
)
from orchestrator.proxies.feature import ContainerProxies
from orchestrator.proxies.model.credentials import CredentialSource
from orchestrator.proxies.model.exchange import RunIdentity
from orchestrator.reports import approvals as approval_reports
from orchestrator.store.access import approvals as approval_store
from orchestrator.store.access.approvals import ApprovalKind, ApprovalRequest, ApprovalState
from orchestrator.web.console import marks
from tests.support.host_contexts import host_context
from tests.support.store_harness import StoreHarness, a_message
from tests.support.task_harness import TaskHarness
from tests.support.until import until

PLACE = ApprovalRequest(
    folder=Folder("family"),
    kind=ApprovalKind.EGRESS,
    subject="shop.example:443",
    run_id=RunId("run-1"),
    turn_id=TurnId(1),
)


def call(arguments: object, **more: object) -> ApprovalRequest:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    body = json.dumps({**message, "params": {"name": "send", "arguments": arguments, **more}}).encode()
    made = mcp_message.read_message(body)
    return ApprovalRequest(
        folder=Folder("family"),
        kind=ApprovalKind.MCP,
        subject="mail/send",
        call_hash=made.call_hash,
        detail=made.arguments,
        run_id=RunId("run-1"),
        turn_id=TurnId(1),
    )


@dataclass
class Asking:
    """A group that asks, and the owner in main."""

    harness: StoreHarness
    service: Approvals
    say: Callable[[str], Awaitable[object]]
    tasks: asyncio.TaskGroup
    told: list[str] = field(default_factory=list)

    async def asked(self, request: ApprovalRequest = PLACE) -> asyncio.Task[str | None]:
        """Ask, and wait until the owner has been told."""
        before = len(await self.states())
        task = self.tasks.create_task(self.service.ask(request), name="asking")

        async def is_told() -> bool:
            return len(await self.states()) > before

        await until(is_told, "the owner is told")
        return task

    async def questions(self) -> list[str]:
        return [one.text for one in await self.harness.outgoing() if "🔐" in one.text]

    async def answers(self) -> list[str]:
        return [one.text for one in await self.harness.outgoing() if "🔐" not in one.text]

    async def decide(self, number: int, decision: Decision) -> None:
        async with self.harness.database.transaction() as tx:
            await approvals.decide(tx, number, decision, by="a test", now_ms=self.harness.clock.now_ms())
        self.harness.bus.publish("approval.decided")

    async def states(self) -> list[str]:
        return [row["state"] for row in await self.harness.rows("SELECT state FROM approvals ORDER BY id")]


@pytest.fixture
async def asking(store_harness: StoreHarness) -> AsyncIterator[Asking]:
    async with store_harness.database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=store_harness.clock.now_ms())
    await store_harness.add_group("family", requires_trigger=False)

    async def nothing_at_once(*_: object, **__: object) -> None:
        return None

    intake = build_intake(host_context(store_harness), at_once=nothing_at_once)
    service = Approvals(
        store_harness.database,
        store_harness.database,
        clock=store_harness.clock,
        bus=store_harness.bus,
        outbox=store_harness.wakeups.outbox,
        redact=lambda text: text.replace("hunter2", "[redacted]"),
    )

    async def say(text: str, folder: str = "main") -> object:
        return await intake.accept(a_message(text, folder))

    async with asyncio.TaskGroup() as tasks:
        yield Asking(store_harness, service, say, tasks)


def impatient(asking: Asking) -> Approvals:
    harness = asking.harness
    return Approvals(
        harness.database,
        harness.database,
        clock=harness.clock,
        bus=harness.bus,
        outbox=harness.wakeups.outbox,
        redact=str,
        wait_seconds=0.01,
    )


async def test_the_owner_is_told_in_main_and_allows_it_there(asking: Asking) -> None:
    task = await asking.asked()
    (question,) = await asking.questions()
    assert "The agent of 'family' asks to reach `shop.example:443` (request 1)." in question
    (row,) = await asking.harness.rows("SELECT chat_jid FROM outbox")
    assert row["chat_jid"] == "local:main"
    await asking.say("Allow 1.")
    assert await task is None
    assert await asking.answers() == ["Allowed for 15 minutes: `shop.example:443` for 'family'."]
    assert await asking.service.ask(PLACE) is None, "as long as it holds, nobody is asked again"
    kinds = [row["kind"] for row in await asking.harness.rows("SELECT kind FROM audit ORDER BY id")]
    assert kinds[-2:] == ["approval.asked", "approval.allowed"]
    asking.harness.clock.pass_ms(HOLD_MS)
    again = await asking.asked()
    await asking.say("항상 허용 2")
    assert await again is None
    assert (await asking.answers())[-1] == "앞으로 늘 허용합니다: `shop.example:443` (family)."
    asking.harness.clock.pass_ms(400 * 24 * 3_600_000)
    assert await asking.service.ask(PLACE) is None


async def test_what_is_refused_stays_so_for_a_while(asking: Asking) -> None:
    task = await asking.asked()
    await asking.say("refuse #1")
    assert "the owner has refused it (request 1)" in str(await task)
    assert "refused" in str(await asking.service.ask(PLACE))
    assert len(await asking.questions()) == 1
    asking.harness.clock.pass_ms(HOLD_MS)
    later = await asking.asked()
    await asking.decide(2, "allow")
    assert await later is None


async def test_an_answer_that_comes_late_holds_for_the_next_try(asking: Asking) -> None:
    reason = await impatient(asking).ask(PLACE)
    assert "was asked (request 1) and has not answered yet" in str(reason)
    assert "request 1" in str(await impatient(asking).ask(PLACE)), "it joins the one that waits"
    assert len(await asking.questions()) == 1
    await asking.decide(1, "allow")
    assert await impatient(asking).ask(PLACE) is None
    (notice,) = await asking.harness.rows(
        "SELECT group_folder, payload_json FROM cross_session_notifications"
    )
    assert notice["group_folder"] == "family"
    assert "Allowed for 15 minutes: reach `shop.example:443`" in notice["payload_json"]


@pytest.mark.parametrize(
    ("request_made", "decision", "state", "audited", "told"),
    [
        (PLACE, "allow", "once", "approval.allowed", "Allowed for 15 minutes: reach `shop.example:443`"),
        (PLACE, "always", "always", "approval.allowed", "Allowed from now on: reach `shop.example:443`"),
        (PLACE, "refuse", "refused", "approval.refused", "Refused: reach `shop.example:443`"),
        (
            call({"a": 1}),
            "allow",
            "once",
            "approval.allowed",
            "Allowed for this one call: call `send` of the MCP server `mail`",
        ),
    ],
    ids=["allow", "always", "refuse", "call"],
)
async def test_a_decision_is_recorded_with_who_made_it_and_the_agent_reads_it(
    asking: Asking, request_made: ApprovalRequest, decision: Decision, state: str, audited: str, told: str
) -> None:
    await impatient(asking).ask(request_made)
    asking.harness.clock.pass_ms(5)
    await asking.decide(1, decision)

    (row,) = await asking.harness.rows("SELECT * FROM approvals")
    assert (row["state"], row["decided_by"], row["decided_ms"]) == (
        state,
        "a test",
        asking.harness.clock.now_ms(),
    )
    asked, decided = await asking.harness.rows("SELECT * FROM audit WHERE kind LIKE 'approval.%' ORDER BY id")
    assert (asked["kind"], decided["kind"]) == ("approval.asked", audited)
    assert {"by": "a test", "decision": decision}.items() <= json.loads(decided["detail"]).items()
    (notice,) = await asking.harness.rows("SELECT payload_json FROM cross_session_notifications")
    assert told in notice["payload_json"]


async def test_a_call_is_allowed_once_and_with_just_its_arguments(asking: Asking) -> None:
    task = await asking.asked(call({"to": "bo@example.com", "text": "hunter2"}))
    (question,) = await asking.questions()
    assert "call `send` of the MCP server `mail`" in question
    assert '"to": "bo@example.com"' in question
    assert "hunter2" not in question
    await asking.say("allow 1")
    assert await task is None
    assert await asking.states() == ["used"]
    other = await asking.asked(call({"to": "eve@example.com", "text": "hunter2"}))
    same = await asking.asked(call({"text": "hunter2", "to": "bo@example.com"}))
    await asking.decide(2, "refuse")
    await asking.decide(3, "always")
    assert await same is None
    assert "refused" in str(await other)
    assert await asking.service.ask(call({"to": "anybody"})) is None


async def test_a_permission_that_is_used_up_lets_its_call_through_though_the_time_is_over(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is stored, and the disk answers only after the time limit."""
    seconds = 1.0
    connection = asking.harness.database._connection
    execute = connection.execute
    is_used = False

    async def slow_commit(sql: str, *parameters: object) -> object:
        nonlocal is_used
        is_used = is_used or "SET state = 'used'" in sql
        found = await execute(sql, *parameters)
        if is_used and sql == "COMMIT":
            await asyncio.sleep(seconds)
        return found

    monkeypatch.setattr(connection, "execute", slow_commit)
    monkeypatch.setattr(asking.service, "_wait_seconds", seconds)
    task = await asking.asked(call({"to": "jane"}))
    await asking.decide(1, "allow")
    assert await task is None
    assert await asking.states() == ["used"]


async def test_a_call_is_allowed_with_just_its_meta_which_the_owner_sees(asking: Asking) -> None:
    def tried(number: int, **meta: object) -> ApprovalRequest:
        ids = {"progressToken": number, "claudecode/toolUseId": f"toolu_01{number}"}
        return call({"a": 1}, _meta={**ids, **meta})

    task = await asking.asked(tried(1, tenant="own"))
    (question,) = await asking.questions()
    assert 'with `{"a": 1} with _meta {"tenant": "own"}`' in question
    assert "toolu_" not in question
    await asking.decide(1, "allow")
    assert await task is None

    allowed = await asking.asked(tried(2, tenant="own"))
    await asking.decide(2, "allow")
    assert await allowed is None
    assert "was asked (request 3)" in str(await impatient(asking).ask(tried(3, tenant="own")))
    await asking.decide(3, "allow")
    assert "was asked (request 4)" in str(await impatient(asking).ask(tried(4, tenant="other")))
    assert await impatient(asking).ask(tried(5, tenant="own")) is None, "each try has ids of its own"


@pytest.mark.parametrize("token", [True, {"tenant": "other"}, "a text with words", "x" * 101, 1.5])
async def test_an_id_of_a_try_carries_nothing_else(asking: Asking, token: object) -> None:
    plain = call({"a": 1}, _meta={"progressToken": 1})
    assert plain.call_hash == call({"a": 1}).call_hash
    assert call({"a": 1}, _meta={"progressToken": token}).call_hash != plain.call_hash


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": "x" * 4_000, "z": "delete"},
        {"a": "\u200b" * 1_000},
        {"a": "x" * 50_000},
        {"a": "hunter2" * 600, "z": "delete"},
    ],
)
async def test_what_is_too_long_to_be_shown_whole_is_not_asked_about(
    asking: Asking, arguments: object
) -> None:
    service = Approvals(
        asking.harness.database,
        asking.harness.database,
        clock=asking.harness.clock,
        bus=asking.harness.bus,
        outbox=asking.harness.wakeups.outbox,
        redact=lambda text: text.replace("hunter2", "*"),
        wait_seconds=0.01,
    )
    reason = await service.ask(call(arguments))
    assert reason == "it is too long to be asked about: at most 4,000 characters"
    assert await asking.questions() == []

    task = await asking.asked(call({"a": 1}))
    await asking.decide(1, "always")
    await task
    assert await service.ask(call(arguments)) is None, "what is allowed for ever is not asked about"


async def test_what_was_allowed_for_ever_can_be_taken_back(asking: Asking) -> None:
    task = await asking.asked()
    await asking.decide(1, "always")
    assert await task is None
    await asking.decide(1, "refuse")
    assert await asking.states() == [ApprovalState.REFUSED]
    again = await asking.asked()
    await asking.decide(2, "refuse")
    assert await again is not None
    with pytest.raises(ApprovalIsOver, match="was decided already"):
        await asking.decide(2, "allow")


async def test_the_agent_of_main_is_not_given_what_another_agent_asks_the_owner(asking: Asking) -> None:
    task = await asking.asked(replace(PLACE, subject="obey.me:443"))
    await asking.harness.deliver_all()
    await asking.say("what is new?")
    _, _, order = await asking.harness.start_next("main")
    assert "obey.me" not in order.prompt
    await asking.decide(1, "refuse")
    await task


async def test_only_a_whole_message_of_main_decides(asking: Asking) -> None:
    task = await asking.asked()
    for text, folder in [
        ("allow 1", "family"),
        ("you may allow 1", "main"),
        ("allow 1 and 2", "main"),
        ("allow 99", "main"),
        ("allow", "main"),
    ]:
        await asking.say(text, folder)  # type: ignore[call-arg]
    assert await asking.states() == ["waiting"]
    assert await asking.answers() == []
    assert len(await asking.harness.rows("SELECT 1 FROM turns WHERE state = 'queued'")) == 2
    await asking.decide(1, "refuse")
    await task


async def test_a_request_lapses_and_a_stranger_number_is_told(asking: Asking) -> None:
    await impatient(asking).ask(PLACE)
    asking.harness.clock.pass_ms(LAPSE_MS)
    await asking.say("allow 1")
    (reply,) = await asking.answers()
    assert reply == "Request 1 has lapsed: the agent asks again when it needs it."
    with pytest.raises(UnknownApproval):
        await asking.decide(7, "allow")


async def test_a_container_that_asks_for_everything_fills_no_chat(asking: Asking) -> None:
    service = impatient(asking)
    reasons = [
        await service.ask(
            ApprovalRequest(
                folder=Folder("family"),
                kind=ApprovalKind.EGRESS,
                subject=f"{number}.example:443",
                run_id=RunId("r"),
                turn_id=None,
            )
        )
        for number in range(MAX_WAITING + 5)
    ]
    (question,) = await asking.questions()
    assert question.startswith(
        f"🔐 The agent of 'family' asks for {MAX_WAITING} things:\n• to reach `0.example"
    )
    assert "refuse all family" in question
    assert all("was not asked again" in str(reason) for reason in reasons[MAX_WAITING:])


async def test_a_group_that_is_gone_leaves_nothing_to_one_that_gets_its_folder(asking: Asking) -> None:
    task = await asking.asked()
    await asking.decide(1, "always")
    await task
    async with asking.harness.database.transaction() as tx:
        await registration.unregister(tx, "family", now_ms=asking.harness.clock.now_ms())
    assert await asking.states() == []


def place(number: int) -> ApprovalRequest:
    return replace(PLACE, subject=f"{number}.example:443")


async def test_who_refuses_three_times_in_an_hour_is_asked_nothing_for_an_hour(asking: Asking) -> None:
    for number in (1, 2, 3):
        task = await asking.asked(place(number))
        await asking.say(f"refuse {number}")
        assert "refused it" in str(await task)
        await asking.harness.deliver_all()

    assert "has refused 3 requests" in str(await asking.service.ask(place(4)))
    assert await asking.questions() == []
    asking.harness.clock.pass_ms(HOUR_MS + 1)
    later = await asking.asked(place(5))
    await asking.decide(4, "allow")
    assert await later is None


YEAR_MS = 365 * 24 * HOUR_MS


@pytest.mark.parametrize(("decision", "is_allowed"), [("allow", True), ("refuse", False)])
async def test_a_decision_for_a_while_of_a_clock_that_was_ahead_ends_when_that_is_set_right(
    asking: Asking, decision: Decision, is_allowed: bool
) -> None:
    clock = asking.harness.clock

    async def reached() -> list[str]:
        async with asking.harness.database.reading() as tx:
            return await approval_store.temporary_destinations(tx, PLACE.folder, now_ms=clock.now_ms())

    clock.wall_ms += YEAR_MS
    task = await asking.asked()
    await asking.decide(1, decision)
    assert (await task is None) == is_allowed
    assert await reached() == ([PLACE.subject] if is_allowed else [])
    clock.wall_ms -= YEAR_MS
    assert await reached() == []
    assert "was asked (request 2)" in str(await impatient(asking).ask(PLACE))
    async with asking.harness.database.reading() as tx:
        listed = await approval_store.waiting_or_in_force(tx, now_ms=clock.now_ms())
    assert [one.id for one in listed] == [2]


@pytest.mark.parametrize("decision", ["allow", "refuse"])
@pytest.mark.parametrize("request_made", [PLACE, call({"a": 1})], ids=["place", "tool"])
async def test_a_decision_of_a_clock_that_was_ahead_does_not_come_back_when_the_clock_gets_there(
    asking: Asking, decision: Decision, request_made: ApprovalRequest
) -> None:
    clock, scheduler = asking.harness.clock, TaskHarness(asking.harness).scheduler
    clock.wall_ms += YEAR_MS
    await scheduler.fire_due()
    await impatient(asking).ask(request_made)
    await asking.decide(1, decision)
    clock.wall_ms -= YEAR_MS
    await scheduler.fire_due()
    clock.pass_ms(YEAR_MS + 1)
    async with asking.harness.database.reading() as tx:
        reached = await approval_store.temporary_destinations(tx, PLACE.folder, now_ms=clock.now_ms())
    assert reached == []
    assert "was asked (request 2)" in str(await impatient(asking).ask(request_made))


async def test_questions_of_a_clock_that_was_ahead_wait_for_the_usual_time_from_its_correction_on(
    asking: Asking,
) -> None:
    clock, scheduler = asking.harness.clock, TaskHarness(asking.harness).scheduler
    clock.wall_ms += YEAR_MS
    await scheduler.fire_due()
    for number in range(MAX_WAITING):
        await impatient(asking).ask(place(number))
    clock.wall_ms -= YEAR_MS
    await scheduler.fire_due()
    clock.pass_ms(LAPSE_MS - 1)
    await asking.decide(1, "refuse")
    assert "was asked" in str(await impatient(asking).ask(place(1))), "it still waits"
    clock.pass_ms(1)
    assert f"was asked (request {MAX_WAITING + 1})" in str(await impatient(asking).ask(place(1)))


async def test_what_is_refused_for_good_stays_so_when_the_clock_is_set_back(asking: Asking) -> None:
    clock = asking.harness.clock
    clock.wall_ms += YEAR_MS
    async with asking.harness.database.transaction() as tx:
        await approvals.settle_refused(
            tx,
            PLACE.folder,
            parse_target(PLACE.subject),
            "never",
            run_id=PLACE.run_id,
            turn_id=None,
            by="a test",
            now_ms=clock.now_ms(),
        )
    clock.wall_ms -= YEAR_MS
    await TaskHarness(asking.harness).scheduler.fire_due()
    assert "refused it (request 1)" in str(await impatient(asking).ask(PLACE))


@pytest.mark.parametrize(("decision", "count"), [("refuse", 3), ("allow", MAX_QUESTIONS_AN_HOUR)])
async def test_questions_of_a_clock_that_was_ahead_forbid_none_when_that_is_set_right(
    asking: Asking, decision: Decision, count: int
) -> None:
    clock, service = asking.harness.clock, impatient(asking)
    clock.wall_ms += YEAR_MS
    for number in range(count):
        await service.ask(place(number))
        await asking.decide(number + 1, decision)
    assert "(request" not in str(await service.ask(place(98))), "the owner is left in peace"
    clock.wall_ms -= YEAR_MS
    assert f"was asked (request {count + 1})" in str(await service.ask(place(99)))


async def test_an_owner_who_allows_is_asked_so_often_an_hour_and_no_more(asking: Asking) -> None:
    for number in range(MAX_QUESTIONS_AN_HOUR):
        task = await asking.asked(place(number))
        await asking.decide(number + 1, "allow")
        assert await task is None

    assert f"asked {MAX_QUESTIONS_AN_HOUR} times" in str(await asking.service.ask(place(99)))


@pytest.mark.parametrize(
    ("text", "left", "reply"),
    [
        ("Refuse all.", 0, "Refused: 3 requests."),
        ("refuse all family", 1, "Refused: 2 requests."),
        ("모두 거절", 0, "거절했습니다: 요청 3개."),
        ("전부 거절 family", 1, "거절했습니다: 요청 2개."),
    ],
)
async def test_all_that_waits_is_refused_at_once(asking: Asking, text: str, left: int, reply: str) -> None:
    await asking.harness.add_group("work")
    tasks = [await asking.asked(place(1)), await asking.asked(place(2))]
    other = await asking.asked(replace(place(3), folder=Folder("work")))
    await asking.say(text)

    reasons = [await task for task in tasks]
    assert all("refused" in str(reason) for reason in reasons)
    assert (await asking.states()).count("waiting") == left
    assert (await asking.answers())[-1] == reply
    if left:
        await asking.decide(3, "refuse")
    await other


@pytest.mark.parametrize(
    ("text", "reply"), [("refuse all", "No request waits."), ("모두 거절", "기다리는 요청이 없습니다.")]
)
async def test_nothing_waits_to_be_refused(asking: Asking, text: str, reply: str) -> None:
    await asking.say(text)
    assert (await asking.answers())[-1] == reply


async def test_a_decision_that_comes_too_late_is_answered_in_its_language(asking: Asking) -> None:
    decided = await asking.asked(place(1))
    await asking.say("거절 1")
    await decided
    await asking.say("허용 1")
    assert (await asking.answers())[-1] == (
        "1번 요청은 이미 결정되었습니다 (거절). 필요하면 에이전트가 다시 묻습니다."
    )
    await asking.say("allow 1")
    assert "was decided already (refused)" in (await asking.answers())[-1]

    lapsed = await asking.asked(place(2))
    asking.harness.clock.pass_ms(LAPSE_MS)
    await asking.say("허용 2")
    assert (await asking.answers())[-1] == (
        "2번 요청은 시간이 지났습니다. 필요하면 에이전트가 다시 묻습니다."
    )
    lapsed.cancel()
    await asyncio.wait([lapsed])


HIDDEN = "\u200b\u00ad\u3164\u115f\ufe0f\u180b\U000e0041\U000e0100"
PILE = "a" + "\u0301" * 400


async def test_hidden_characters_and_piles_of_marks_are_written_out_wherever_a_request_is_shown(
    asking: Asking, store_harness: StoreHarness
) -> None:
    task = await asking.asked(call({"path": HIDDEN, "pile": PILE}))
    (question,) = await asking.questions()
    async with store_harness.database.transaction() as tx:
        found = await approval_reports.rows(tx, None, limit=5, now_ms=0)
    listed = "\n".join(approval_reports.lines([{**found[0], "subject": HIDDEN + PILE}], zone=ZoneInfo("UTC")))

    on_the_console = str(marks.written_out(found[0]["detail"]))
    for shown in (question, listed, on_the_console):
        assert not set(shown) & set(HIDDEN)
        assert "\\ufe0f" in shown
        assert "\u0301" * 5 not in shown
    await asking.decide(1, "refuse")
    await task


async def test_the_list_shows_all_of_a_call_that_waits_and_says_where_the_rest_of_another_is(
    asking: Asking, store_harness: StoreHarness
) -> None:
    task = await asking.asked(call({"path": "x" * 200 + " the end"}))
    async with store_harness.database.transaction() as tx:
        waiting = await approval_reports.rows(tx, None, limit=5, now_ms=0)
    await asking.decide(1, "refuse")
    await task
    async with store_harness.database.transaction() as tx:
        decided = await approval_reports.rows(tx, None, limit=5, now_ms=0)
    before, after = (approval_reports.lines(rows, zone=ZoneInfo("UTC")) for rows in (waiting, decided))

    assert before[-1].startswith("Request 1 with all of it: ")
    assert "x the end" in before[-1]
    assert after[-1] == "All of what was decided: 'andy approvals list --json'."
    assert not any("the end" in line for line in after)


HOSTILE = "a\nAnswer here: allow 6\u2028x\u202egnp\u200b\x1b[2J`done`\u3164" + "\n" * 60


async def test_what_an_agent_wrote_cannot_pass_for_words_of_andys(asking: Asking) -> None:
    task = await asking.asked(call({"path": HOSTILE, "rest": "y" * 2_000}))
    (question,) = await asking.questions()

    lines = question.splitlines()
    assert len(lines) == 2, "the words of the agent end no line"
    assert lines[0].startswith(
        "🔐 The agent of 'family' asks to call `send` of the MCP server `mail` (request 1)"
    )
    assert lines[1].startswith("Answer here: allow 1, always allow 1, or refuse 1.")
    assert question.count("`") == 6
    assert len(question) < 1_500
    assert not set(question) & set("\u2028\u202e\u200b\x1b\u3164")
    assert "\\u202e" in question
    assert lines[0].endswith(
        "more characters)`. Read all of it on the console's page Safety before you allow it."
    )
    await asking.decide(1, "refuse")
    await task


async def test_where_a_rule_names_a_server_no_method_passes_that_the_protocol_does_not_know(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    await store_harness.add_group(container_config={"ask": ["mcp:mail/send"]})
    proxies = ContainerProxies(
        host_context(store_harness, tmp_path),
        credentials=CredentialSource(tmp_path, {}),
        address="127.0.0.1",
        on_runaway=lambda *_: None,
    )
    identity = RunIdentity(run_id=RunId("run-1"), folder=Folder("family"))

    async def reason(server: str, method: str) -> str | None:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": "send"}})
        return await proxies._approve_message(identity, server, mcp_message.read_message(body.encode()))

    for method in ("TOOLS/CALL", "mail/send"):
        assert f"the method '{method}' is not known" in str(await reason("mail", method))
    assert await reason("mail", "tools/list") is None
    assert await reason("notes", "mail/send") is None


async def test_an_allowed_address_with_a_zone_hides_no_other_from_the_egress_proxy(
    asking: Asking, store_harness: StoreHarness, tmp_path: Path
) -> None:
    """Earlier versions of Andy asked about such an address."""
    for number, request_made in enumerate((replace(PLACE, subject="[fe80::1%eth0]:443"), PLACE), 1):
        task = await asking.asked(request_made)
        await asking.decide(number, "allow")
        assert await task is None
    proxies = ContainerProxies(
        host_context(store_harness, tmp_path),
        credentials=CredentialSource(tmp_path, {}),
        address="127.0.0.1",
        on_runaway=lambda *_: None,
    )
    config = settings.checked({"egress": {"allowlist": ["example.com:443"]}})
    async with store_harness.database.reading() as tx:
        targets = await proxies._temporary_targets(tx, PLACE.folder, config)
    assert targets == {parse_target(PLACE.subject)}
