"""Make the turns whose price is measured.

They are a first message in main, its follow-up, and a cycle of the dashboard worker.
"""

from __future__ import annotations

from zoneinfo import ZoneInfo

from agent_runner.wire.order import RunOrder, TurnOrder
from agent_runner.workspace import Workspace
from orchestrator.dashboard.rules.slots import Hours
from orchestrator.dashboard.worker import prompt
from orchestrator.domain.dashboard import (
    BoardSnapshot,
    BoardTask,
    Dashboard,
    Deadline,
    Notification,
    Question,
)
from orchestrator.domain.values import Folder
from orchestrator.groups import skills
from orchestrator.groups.memory_templates import ensure_prompt, template

RUN, CHAT, FOLDER = "run-1", "local:main", Folder("main")
NOW_MS = 1_770_593_400_000
DAY_MS = 86_400_000
ZONE = ZoneInfo("Asia/Seoul")
CHAT_MESSAGE = """\
<context timezone="Asia/Seoul" />
<messages>
<message sender="Ann" time="2026-02-09 08:30">hi, what can you do?</message>
</messages>"""
FOLLOW_UP = CHAT_MESSAGE.replace("hi, what can you do?", "thanks").replace("08:30", "08:31")


def prepare_main(workspace: Workspace) -> None:
    """Give main the memory, the prompt and the skills that a new home has."""
    home = workspace.root / "home-of-the-host"
    (home / "groups").mkdir(parents=True)
    for name in ensure_prompt(home, assistant="Andy", worker_minutes=30):
        (workspace.shared / name).write_bytes((home / "groups" / "global" / name).read_bytes())
    laid = skills.make_plugin(home, FOLDER, None, is_in_use=False)
    assert laid is not None
    workspace.skills.symlink_to(laid)
    (workspace.group / "CLAUDE.md").write_text(template("main", assistant="Andy", group="main"))


def main_order(*, model: str | None = None) -> RunOrder:
    """Return the order of a run in main whose first turn is one short message."""
    turn = TurnOrder(run=RUN, turn=1, kind="chat", prompt=CHAT_MESSAGE)
    return RunOrder(
        run=RUN,
        group=FOLDER,
        chat_jid=CHAT,
        is_main=True,
        timezone=ZONE.key,
        agent="claude",
        model=model,
        web_search=True,
        turn=turn,
    )


def worker_order() -> RunOrder:
    """Return the order of a worker's cycle: two tasks, one of them blocked, a question, a notification."""
    state = prompt.render(_board(), [], zone=ZONE, now_ms=NOW_MS)
    instructions = prompt.instructions(None, Hours(zone=ZONE), cap=3)
    turn = TurnOrder(run=RUN, turn=1, kind="worker", prompt=state, instructions=instructions)
    return RunOrder(run=RUN, group=FOLDER, chat_jid=CHAT, agent="claude", turn=turn)


def _board() -> BoardSnapshot:
    tomorrow = Deadline(at_ms=NOW_MS + DAY_MS, date="2026-02-10", text="2026-02-10")
    times = {"created_ms": NOW_MS - 5 * DAY_MS, "updated_ms": NOW_MS, "last_update_ms": NOW_MS - 3 * DAY_MS}
    return BoardSnapshot(
        dashboard=Dashboard(folder=FOLDER, revision=1, created_ms=NOW_MS),
        tasks=(
            BoardTask(folder=FOLDER, id="task_1f2e3d4c", title="Write blog post", deadline=tomorrow, **times),
            BoardTask(folder=FOLDER, id="task_5b6a7988", title="Plan the trip", blocked_ms=NOW_MS, **times),
        ),
        questions=(
            Question(folder=FOLDER, id="q_0a1b2c3d", question="Who books the train?", created_ms=NOW_MS),
        ),
        answered=(),
        notifications=(
            Notification(
                folder=FOLDER, id="n_4d5e6f70", message="Blog due tomorrow", due_ms=NOW_MS, created_ms=NOW_MS
            ),
        ),
    )
