"""Fill a store with a row of each kind that a host lists."""

from __future__ import annotations

from agent_runner.wire.mailbox import ScheduleTask
from orchestrator.containers.logs import files
from orchestrator.domain.failures import ModelError
from orchestrator.domain.model_services import ModelService, WorkKind
from orchestrator.domain.values import Folder, RunId, TurnId, TurnKind
from orchestrator.groups import changes, model_choices
from orchestrator.home.directory import Home
from orchestrator.reports import costs, models
from orchestrator.scheduler import scheduled_task_service
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.store import audit
from orchestrator.store.access import approvals
from orchestrator.store.access.approvals import ApprovalKind, ApprovalRequest
from orchestrator.store.conversation import outbox
from orchestrator.store.groups import groups
from orchestrator.store.loop import loops
from orchestrator.store.loop.loops import NextWake
from orchestrator.store.money import usage
from orchestrator.store.money.budgets import Period
from orchestrator.store.runs import turn_moves
from orchestrator.store.settings.model_services import ChosenModel
from tests.support.dashboard_harness import FEB_9_1200, HOUR_MS, DashboardHarness, alert
from tests.support.notice_harness import NoticeHarness
from tests.support.reminders import put_reminder
from tests.support.store_harness import SEOUL, StoreHarness


async def fill_store(harness: StoreHarness, home: Home) -> None:
    """Put two of everything that is listed into the store, and a log of a run into `home`."""
    clock = harness.clock
    board = DashboardHarness(harness)
    for folder in ("family", "work"):
        await harness.add_group(folder, requires_trigger=False)
    await board.put(alert(id="n_1", task_id=None), alert(id="n_2", task_id=None, due_ms=FEB_9_1200))
    notices = NoticeHarness(harness)
    await notices.note("look at the oven")
    await notices.note("look at the cat")
    for number in (1, 2):
        await harness.hear(f"buy milk {number}", id=f"M{number}", quote=None)
        await notices.ask("list_reminders")
        await harness.answer("yes")
    await harness.deliver_all()
    await _fill(harness)
    await _choose_models(harness)
    logged = await harness.rows("SELECT id, group_folder, started_ms FROM runs LIMIT 1")
    path = files.path_of(home.logs, "family", logged[0]["id"], logged[0]["started_ms"])
    files.append(path, files.event_line(clock.now_ms(), "run.begun", {"group": "family"}), creates=True)


async def _choose_models(harness: StoreHarness) -> None:
    """Add a service that has no key and one that needs none, one of them down, and choose them."""
    now_ms = harness.clock.now_ms()
    async with harness.database.transaction() as tx:
        for name, url, key in (
            ("local", "http://127.0.0.1:9", None),
            ("far", "https://far.invalid", "FAR_KEY"),
        ):
            service = ModelService(name=name, kind="gateway", url=url, key_env=key, model="m")
            await models.add(tx, service, now_ms=now_ms)
        chosen = [ChosenModel(WorkKind.FALLBACK, "local/m"), ChosenModel(WorkKind.FALLBACK, "far/m", True)]
        await model_choices.choose(tx, WorkKind.FALLBACK, chosen, has_gateway=False, now_ms=now_ms)
        for_tasks = [ChosenModel(WorkKind.TASKS, "far/m")]
        await model_choices.choose(tx, WorkKind.TASKS, for_tasks, has_gateway=False, now_ms=now_ms)
        await model_choices.choose_for_group(
            tx, "work", WorkKind.ALL, "local/m", has_gateway=False, by="a test", now_ms=now_ms
        )
        await turn_moves.begin_outage(tx, "local", cause=ModelError.OUTAGE, status=None, now_ms=now_ms)


async def _fill(harness: StoreHarness) -> None:
    now_ms, times = harness.clock.now_ms(), schedule_reader(lambda _: SEOUL)
    async with harness.database.transaction() as tx:
        family = await groups.known(tx, "family")
        for number in (1, 2):
            wish = ScheduleTask(
                prompt=f"do {number}", schedule_type="interval", schedule_value="12h", context_mode="isolated"
            )
            await scheduled_task_service.add(tx, "family", wish, times, now_ms=now_ms)
            await put_reminder(tx, family, text="pill", due_ms=now_ms + HOUR_MS, now_ms=now_ms)
            await outbox.add(tx, chat_jid=family.jid, text="out", dedupe_key=f"{number}", now_ms=now_ms)
            await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind="egress.refused"))
            await usage.add(tx, _usage(number, now_ms))
            await approvals.add(tx, _asked(number), now_ms=now_ms, expires_ms=now_ms + HOUR_MS)
            await changes.configure(tx, "family", {"cpus": number}, by="a browser", now_ms=now_ms)
        await loops.switch_on(
            tx,
            family.folder,
            auto_ms=HOUR_MS,
            next_wake=NextWake(at_ms=now_ms + HOUR_MS, set_by="agent", reason="look", trace=("a",)),
            now_ms=now_ms,
        )
        for period in Period:
            await costs.set_budget(
                tx,
                costs.parse_amount("5usd"),
                period=period,
                folder="family",
                is_background=False,
                now_ms=now_ms,
            )


def _asked(number: int) -> ApprovalRequest:
    return ApprovalRequest(
        folder=Folder("family"),
        kind=ApprovalKind.EGRESS,
        subject=f"{number}.example:443",
        run_id=RunId("R"),
        turn_id=None,
    )


def _usage(number: int, now_ms: int) -> usage.UsageEntry:
    return usage.UsageEntry(
        at_ms=now_ms,
        folder=Folder("family"),
        run_id="R",  # type: ignore[arg-type]
        turn_id=TurnId(number),
        kind=TurnKind.CHAT,
        task_id=None,
        model=None if number == 1 else "m",
        input_tokens=1,
        output_tokens=1,
        cache_read_tokens=0,
        cache_write_tokens=0,
        cost_nano_usd=None if number == 1 else 5,
        is_whole=True,
    )
