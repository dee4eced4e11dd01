"""`andy dashboard` and `andy cron` on a home whose Andy is down."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backup import archive
from orchestrator.cli import dashboard_service
from orchestrator.dashboard.files import export
from orchestrator.domain.errors import BadRequest
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
        == "'main' has no dashboard yet: it is made with the first task, as by 'add a task …'."
    )
    assert said(andy, "dashboard", "import", str(files(tmp_path / "in"))).strip() == (
        "1 task, 1 question, 1 notification"
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
    assert said(andy, "dashboard", "import", str(tmp_path / "out"), "--replace").startswith("1 task,")
    none = files(tmp_path / "none", tasks=[], questions=[], notifications=[])
    assert said(andy, "dashboard", "import", str(none), "--replace") == "The dashboard is empty now.\n"
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
        (["worker", "--llm", "--dry-run"], "--dry-run only shows what the rules would do: leave out --llm."),
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


def test_a_group_need_not_be_named_to_be_found(andy: AndyProcess, tmp_path: Path) -> None:
    for group in ("family", "work"):
        said(andy, "groups", "register", group)
    later = [TASK | {"id": "task_later", "deadline": "2031-03-10"}]
    said(andy, "dashboard", "import", str(files(tmp_path / "later", tasks=later, questions=[])), "work")
    said(andy, "dashboard", "import", str(files(tmp_path / "in")), "family")

    rows = andy.listed("dashboard", "tasks")
    assert [(row["id"], row["group"]) for row in rows] == [("task_001", "family"), ("task_later", "work")]
    assert [row["group"] for row in andy.listed("dashboard", "questions")] == ["family"]
    assert sorted(row["group"] for row in andy.listed("dashboard", "notifications")) == ["family", "work"]
    assert andy.listed("dashboard", "history") == []
    assert andy.listed("dashboard", "tasks", "main") == []
    several = andy.cli("dashboard", "notification", "n_0")
    assert (several.returncode, "n_001 of 'family', n_001 of 'work'" in several.stderr) == (1, True)
    assert andy.listed("dashboard", "notification", "n_0", "work")["group"] == "work"
    assert "q_abcd1234 is answered" in said(andy, "dashboard", "answer", "q_ab", "the big one")
    assert andy.listed("dashboard", "questions") == []
    said(andy, "groups", "remove", "work")
    assert [row["id"] for row in andy.listed("dashboard", "tasks")] == ["task_001"]


def test_a_place_that_cannot_be_written_is_said_in_a_line(andy: AndyProcess, tmp_path: Path) -> None:
    said(andy, "dashboard", "import", str(files(tmp_path / "in")))
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/foo")):
        done = andy.cli("dashboard", "export", str(place))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"andy: The directory {place} cannot be written (")
        assert done.stderr.endswith("): name another.\n")
        assert done.stderr.count("\n") == 1


def test_a_read_only_place_in_a_container_is_refused_with_the_one_for_backups(
    andy: AndyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    said(andy, "dashboard", "import", str(files(tmp_path / "in")))
    monkeypatch.setattr(archive, "COMPOSE_HOME", str(andy.home))
    monkeypatch.setattr(export, "write", refuse)
    with pytest.raises(BadRequest, match=rf"name one in {andy.home}/backups, such as .*/board\.$"):
        dashboard_service.write_files(andy.home, None, tmp_path / "board")


def test_scheduled_tasks_are_listed_with_what_is_cut_and_what_is_paused(andy: AndyProcess) -> None:
    asks = "Look at the mail of this morning and say what is in it"
    made = said(andy, "tasks", "add", "main", asks, "--cron", "0 9 * * *")
    said(andy, "tasks", "pause", made.split()[1])

    assert asks[:39] + "…" in said(andy, "tasks", "list")
    assert "  not due until it is resumed  " in said(andy, "tasks", "list")


def test_a_group_that_does_not_exist_has_no_audit_and_one_that_is_gone_has(andy: AndyProcess) -> None:
    unknown = andy.cli("audit", "nowhere")
    assert (unknown.returncode, "There is no group 'nowhere'" in unknown.stderr) == (1, True)
    said(andy, "groups", "register", "family")
    said(andy, "groups", "remove", "family")
    assert "family" in said(andy, "audit", "family")
    assert said(andy, "audit", "main", "--since", "1h") == "Nothing is recorded.\n"
