"""`questions` and `question_lists`: questions for people, and the numbers under which they were shown.

Answered and closed questions stay stored, since cooldowns depend on them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from agent_runner.wire.unicode_forms import normalized
from orchestrator.domain.dashboard import Question, QuestionType
from orchestrator.domain.values import Folder
from orchestrator.store.board import dashboards
from orchestrator.store.database import Tx, returned
from orchestrator.store.row_mapper import Json, RowMapper

_OPEN = "answered_ms IS NULL AND closed_ms IS NULL"


_MAPPER = RowMapper(
    Question,
    "questions",
    {"folder": "group_folder", "options": Json("options_json")},
    unread=("normal",),
)


def normal_form(text: str) -> str:
    """Return a question without case, spaces and punctuation, so that equal questions compare equal.

    `Is it done?` gives `isitdone`. A text of punctuation alone is returned as it is, without spaces around
    it.
    """
    return re.sub(r"[\W_]+", "", normalized("NFKC", text).casefold()) or text.strip()


async def put(tx: Tx, question: Question, *, read_version: int | None) -> bool:
    """Insert or update a question; return False, and write nothing, if the caller's copy is stale.

    `read_version` is the version that the caller has read, or None for a new question. The copy is stale if
    the stored one has another version by now.
    """
    row = _MAPPER.values(question) | {"normal": normal_form(question.question)}
    return await dashboards.put_row(tx, _MAPPER, row, read_version=read_version)


async def get(tx: Tx, folder: Folder, question_id: str) -> Question | None:
    """Return the question of a group with this id, or None."""
    return await _MAPPER.fetch_one(
        tx, "SELECT * FROM questions WHERE group_folder = ? AND id = ?", (folder, question_id)
    )


async def unanswered(tx: Tx, folder: Folder, task_id: str | None = None) -> list[Question]:
    """Return the open questions of a group, oldest first; with a `task_id`, only those about this task.

    Open questions are neither answered nor closed.
    """
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM questions WHERE group_folder = :folder AND {_OPEN}
          AND (:task IS NULL OR task_id = :task) ORDER BY created_ms, id
        """,  # noqa: S608 - a constant
        {"folder": folder, "task": task_id},
    )


async def unanswered_of_all(tx: Tx, *, limit: int) -> list[Question]:
    """Return at most `limit` questions of all groups that are neither answered nor closed, oldest first."""
    return await _MAPPER.fetch_all(
        tx,
        f"SELECT * FROM questions WHERE {_OPEN} ORDER BY created_ms, id LIMIT ?",  # noqa: S608 - a constant
        (limit,),
    )


async def count_open(tx: Tx, folder: Folder) -> int:
    """Count the questions of a group that are neither answered nor closed."""
    cursor = await tx.execute(
        f"SELECT count(*) AS n FROM questions WHERE group_folder = ? AND {_OPEN}",  # noqa: S608 - a constant
        (folder,),
    )
    return int((await returned(cursor))["n"])


async def unprocessed(tx: Tx, folder: Folder, *, limit: int = -1) -> list[Question]:
    """Return the answered questions whose answers the dashboard worker has not read, the oldest answer first.

    A negative limit means all.
    """
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM questions
        WHERE group_folder = ? AND answered_ms IS NOT NULL AND processed_ms IS NULL
        ORDER BY answered_ms, id LIMIT ?
        """,
        (folder, limit),
    )


async def every(tx: Tx, folder: Folder) -> list[Question]:
    """Return all questions of a group, also answered and closed ones, the oldest first."""
    return await _MAPPER.fetch_all(
        tx, "SELECT * FROM questions WHERE group_folder = ? ORDER BY created_ms, id", (folder,)
    )


async def of_task(tx: Tx, folder: Folder, task_id: str, kind: QuestionType | None = None) -> list[Question]:
    """Return all questions ever asked about a task, newest first; with a `kind`, only those of this type."""
    return await _MAPPER.fetch_all(
        tx,
        """
        SELECT * FROM questions WHERE group_folder = :folder AND task_id = :task
          AND (:kind IS NULL OR type = :kind) ORDER BY created_ms DESC, id
        """,
        {"folder": folder, "task": task_id, "kind": kind},
    )


async def open_like(tx: Tx, folder: Folder, text: str) -> list[Question]:
    """Return a group's open questions with the same text as `text`, but for case, spaces and punctuation."""
    return await _MAPPER.fetch_all(
        tx,
        f"SELECT * FROM questions WHERE group_folder = ? AND normal = ? AND {_OPEN} ORDER BY id",  # noqa: S608
        (folder, normal_form(text)),
    )


async def settled_like(
    tx: Tx, folder: Folder, text: str, task_id: str | None, *, unsettled: Sequence[str]
) -> list[Question]:
    """Return the settled questions with the same text as `text` and about the same task, newest first.

    Case, spaces and punctuation of the text do not count; `task_id` None means about no task. A question is
    settled when it was answered, or closed for a reason that is not in `unsettled`.
    """
    return await _MAPPER.fetch_all(
        tx,
        f"""
        SELECT * FROM questions
        WHERE group_folder = :folder AND normal = :normal AND task_id IS :task AND NOT ({_OPEN})
          AND (answered_ms IS NOT NULL OR closed_reason NOT IN (SELECT value FROM json_each(:unsettled)))
        ORDER BY max(ifnull(answered_ms, 0), ifnull(closed_ms, 0)) DESC, id
        """,  # noqa: S608 - a constant
        {
            "folder": folder,
            "normal": normal_form(text),
            "task": task_id,
            "unsettled": json.dumps(list(unsettled)),
        },
    )


async def settled(tx: Tx, folder: Folder, *, unsettled: Sequence[str]) -> dict[tuple[str, QuestionType], int]:
    """Return when a question was last settled (epoch ms), by the id of its task and the type of the question.

    Questions that are about no task are left out. A question is settled when it was answered, or closed for a
    reason that is not in `unsettled`.
    """
    # The inner `max` takes the later of the two times of a row, the outer one the latest of all rows.
    rows = await tx.execute_fetchall(
        """
        SELECT task_id, type, max(max(ifnull(answered_ms, 0), ifnull(closed_ms, 0))) AS at_ms FROM questions
        WHERE group_folder = :folder AND task_id IS NOT NULL
          AND (answered_ms IS NOT NULL OR closed_reason NOT IN (SELECT value FROM json_each(:unsettled)))
        GROUP BY task_id, type
        """,
        {"folder": folder, "unsettled": json.dumps(list(unsettled))},
    )
    return {(row["task_id"], QuestionType(row["type"])): row["at_ms"] for row in rows}


async def ids_like(tx: Tx, folder: Folder, prefix: str) -> list[str]:
    """Return at most ten ids of a group's questions that begin with `prefix`."""
    rows = await tx.execute_fetchall(
        """
        SELECT id FROM questions
        WHERE group_folder = ? AND substr(id, 1, length(?)) = ? ORDER BY id LIMIT 10
        """,
        (folder, prefix, prefix),
    )
    return [row["id"] for row in rows]


async def last_times(tx: Tx, folder: Folder) -> dict[tuple[str, QuestionType], int]:
    """Return when a question about a task was last shown, answered or closed (epoch ms).

    The keys are the task's id and the type of question. A pair without such a time is left out.
    """
    # The inner `max` takes the latest of the three times of a row, the outer one the latest of all rows.
    rows = await tx.execute_fetchall(
        """
        SELECT task_id, type,
               max(max(ifnull(last_asked_ms, 0), ifnull(answered_ms, 0), ifnull(closed_ms, 0))) AS last_ms
        FROM questions WHERE group_folder = ? AND task_id IS NOT NULL GROUP BY task_id, type
        """,
        (folder,),
    )
    return {(row["task_id"], QuestionType(row["type"])): row["last_ms"] for row in rows if row["last_ms"]}


async def note_processed(tx: Tx, folder: Folder, question_id: str, *, now_ms: int) -> None:
    """Record that the dashboard worker has read the answer to a question."""
    await tx.execute(
        "UPDATE questions SET processed_ms = ? WHERE group_folder = ? AND id = ?",
        (now_ms, folder, question_id),
    )


async def forget_names(tx: Tx, folder: Folder, names: Sequence[str]) -> None:
    """Remove a person's names from the answers to a group's questions.

    The answer to a poll names who chose what, such as "Plum (Jane, Tom)".
    """
    for question in await every(tx, folder):
        answer = question.answer or ""
        for name in names:
            # First of several names in the brackets: "(Jane, Tom)" becomes "(Tom)".
            answer = answer.replace(f"({name}, ", "(")
            # A later name: "(Tom, Jane)" becomes "(Tom)". Only a whole name: "Jan" stays in "Janet".
            answer = re.sub(rf", {re.escape(name)}(?=[,)])", "", answer)
            # The only name: "Plum (Jane)" becomes "Plum".
            answer = answer.replace(f" ({name})", "")
        if answer != (question.answer or ""):
            await tx.execute(
                "UPDATE questions SET answer = ? WHERE group_folder = ? AND id = ?",
                (answer, folder, question.id),
            )


async def note_shown(tx: Tx, folder: Folder, question_id: str, *, now_ms: int) -> None:
    """Record, and count, that a question was shown to people; for a while after, it is not shown again."""
    await tx.execute(
        """
        UPDATE questions SET last_asked_ms = ?, asked_count = asked_count + 1
        WHERE group_folder = ? AND id = ?
        """,
        (now_ms, folder, question_id),
    )


async def note_list(tx: Tx, folder: Folder, ids: Sequence[str], *, now_ms: int) -> None:
    """Record that a group was shown a list of these questions, numbered from 1 in this order."""
    await tx.execute(
        "INSERT INTO question_lists (group_folder, ids_json, told_ms) VALUES (?, ?, ?)",
        (folder, json.dumps(list(ids)), now_ms),
    )


async def newest_list(tx: Tx, folder: Folder, *, since_ms: int) -> tuple[str, ...]:
    """Return the question ids of the list that a group was shown last, in the order of their numbers.

    Empty if that list was shown before `since_ms`, was answered already, or if there is none.
    """
    cursor = await tx.execute(
        """
        SELECT ids_json, told_ms, used_ms FROM question_lists
        WHERE group_folder = ? ORDER BY id DESC LIMIT 1
        """,
        (folder,),
    )
    row = await cursor.fetchone()
    if row is None or row["used_ms"] is not None or row["told_ms"] < since_ms:
        return ()
    return tuple(json.loads(row["ids_json"]))


async def use_list(tx: Tx, folder: Folder, *, now_ms: int) -> None:
    """Record that people have answered the list of questions that was shown; it can be answered only once."""
    await tx.execute(
        "UPDATE question_lists SET used_ms = ? WHERE group_folder = ? AND used_ms IS NULL", (now_ms, folder)
    )
