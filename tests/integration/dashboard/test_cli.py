"""`andy dashboard` and `andy cron` on a home whose Andy is down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.groups import registration
from orchestrator.store.database import Database
from tests.processes.andy import AndyProcess

TASK = {
    "id": "task_001",
    "title": "blog",
    "deadline": "2031-02-10",
    "status": "active",
    "priority": "high",
    "progress": {"percentage": 70, "last_update": "2030-02-01T12:00:00"},
    "created_at": "2030-01-01T09:00:00",
    "updated_at": "2030-02-01T12:00:00",
}
QUESTION = {
    "id": "q_abcd1234",
    "question": "Which hall?",
    "created_at": "2030-02-01T12:00:00",
    "priority": "low",
}
NOTIFICATION = {
    "id": "n_001",
    "message": "Write!",
    "scheduled_at": "2031-02-09T09:00:00",
    "type": "reminder",
    "related_task_id": "task_001",
    "status": "pending",
    "created_at": "2030-02-01T12:00:00",
}


@pytest.fixture
async def andy(tmp_path: Path) -> AndyProcess:
    """A home with a group that nobody has started yet."""
    home = tmp_path / "home"
    (home / "groups").mkdir(parents=True)
    database = await Database.open(home / "store" / "messages.db")
    async with database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=1)
    await database.close()
    return AndyProcess(home, environment={"TZ": "Asia/Seoul"})


def files(directory: Path, **more: list[Any]) -> Path:
    documents = {"tasks": [TASK], "questions": [QUESTION], "notifications": [NOTIFICATION], **more}
    directory.mkdir(exist_ok=True)
    for name, rows in documents.items():
        (directory / f"{name}.json").write_text(json.dumps({"version": "1.0", name: rows}))
    return directory


def said(andy: AndyProcess, *words: str) -> str:
    done = andy.cli(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_dashboard_is_shown_listed_answered_and_kept_up(andy: AndyProcess, tmp_path: Path) -> None:
    assert (
        said(andy, "dashboard", "show").strip()
        == "There is no dashboard yet: it is made with the first task."
    )
    assert said(andy, "dashboard", "import", str(files(tmp_path / "in"))).strip() == (
        "1 tasks, 1 questions, 1 notifications"
    )
    old = files(tmp_path / "old", tasks=[], questions=[], notifications=[NOTIFICATION | {"id": "n_old"}])
    (old / "notifications.json").write_text(
        json.dumps([NOTIFICATION | {"id": "n_old", "type": "completion_check", "status": "cancelled"}])
    )
    taken = andy.cli("dashboard", "import", str(old))
    assert "Changed: type completion_check: progress_check (n_old)" in taken.stderr
    assert "**task_001**: blog" in said(andy, "dashboard", "show")
    assert [row["id"] for row in andy.listed("dashboard", "tasks")] == ["task_001"]
    assert "Which hall?" in said(andy, "dashboard", "questions")
    assert [row["id"] for row in andy.listed("dashboard", "notifications", "--status", "pending")] == [
        "n_001"
    ]
    assert andy.listed("dashboard", "notifications", "--status", "delivered") == []

    heading, made = said(andy, "dashboard", "notification", "n_0").splitlines()
    assert heading.startswith("n_001: ")
    assert " created by " in made

    (row,) = andy.listed("cron", "list")
    assert (row["kind"], row["id"], row["group"]) == ("reminder", "1", "main")

    assert "q_abcd1234 is answered" in said(andy, "dashboard", "answer", "q_ab", "the big one")
    assert andy.listed("dashboard", "questions") == []

    would = said(andy, "dashboard", "worker", "--dry-run")
    assert "would do" in would or "nothing to do" in would
    assert andy.rows("SELECT 1 FROM worker_cycles") == []
    said(andy, "dashboard", "worker")
    assert [row["kind"] for row in andy.listed("dashboard", "worker", "--limit", "5")] == ["rules"]

    said(andy, "dashboard", "export", str(tmp_path / "out"))
    exported = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert exported["tasks"][0]["title"] == "blog"
    again = andy.cli("dashboard", "import", str(tmp_path / "out"))
    assert (again.returncode, again.stdout.strip()) == (0, "Nothing new was in them.")
    assert "stay as they are" in again.stderr
    assert said(andy, "dashboard", "import", str(tmp_path / "out"), "--replace").startswith("1 tasks")
    assert said(andy, "dashboard", "history").strip() == "The history is empty."


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["answer", "q_none", "x"], "There is no question"),
        (["answer", "q_", "x"], "begins several"),
        (["answer", "q_abcd1234", " "], "EMPTY"),
        (["notification", "n_9"], "There is no notification 'n_9': see 'andy dashboard notifications'."),
        (["show", "--group", "nowhere"], "There is no group 'nowhere'"),
        (["worker", "--llm"], "not running"),
        (["import", "/nowhere"], "There is no directory"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    andy: AndyProcess, tmp_path: Path, words: list[str], complaint: str
) -> None:
    another = {**QUESTION, "id": "q_abff", "question": "When?"}
    said(andy, "dashboard", "import", str(files(tmp_path / "in", questions=[QUESTION, another])))
    done = andy.cli("dashboard", *words)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
