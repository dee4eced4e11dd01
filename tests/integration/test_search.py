"""Messages are found by their words, from the moment they are stored to the moment they are taken back."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.backup.retention_job import Retention
from orchestrator.cli.main import app
from orchestrator.home.settings import RETENTION_DAYS
from orchestrator.inbound import search_index
from orchestrator.reports import search
from orchestrator.store.conversation import message_search, messages
from orchestrator.store.conversation.message_search import BadSearch
from orchestrator.store.database import Database, migrations
from tests.support.command_dispatchers import dispatcher_of
from tests.support.store_harness import StoreHarness

BEFORE_THE_INDEX = 14
"""The version of a database whose messages are in no index."""


async def found(store_harness: StoreHarness, text: str, folder: str | None = None, **given: Any) -> list[str]:
    async with store_harness.database.reading() as tx:
        rows = await search.rows(tx, text, folder=folder, **{"limit": 50, **given})
    return [row["text"] for row in rows]


async def check_index(database: Database) -> None:
    """Have SQLite compare the index with the messages. Raises `sqlite3.DatabaseError`."""
    async with database.transaction() as tx:
        await tx.execute("INSERT INTO message_search (message_search, rank) VALUES ('integrity-check', 1)")


async def indexed(store_harness: StoreHarness, term: str) -> int:
    (row,) = await store_harness.rows(
        "SELECT count(*) AS n FROM message_search WHERE message_search MATCH ?", f'"{term}"'
    )
    return int(row["n"])


@pytest.fixture
async def harness(store_harness: StoreHarness) -> StoreHarness:
    await store_harness.add_group("family", requires_trigger=False)
    await store_harness.add_group("work", requires_trigger=False)
    return store_harness


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("dentist", True),
        ("DENT", True),
        ("Tuesday dentist", True),
        ('"with the dentist"', True),
        ('"the with dentist"', False),
        ("dentist wednesday", False),
        ("치과", True),
        ("예약을", True),
        ("약", True),
        ("화요일에 치과", True),
        ("병원", False),
        ("3", True),
        ("at", True),
        ("€", True),
        ("%", False),
        ("_", False),
    ],
)
async def test_parts_of_words_are_found_in_english_and_korean(harness, text, is_found):
    await harness.hear("A date WITH the dentist: Tuesday at 3, 20 €. 화요일에 치과예약을 잡았어")
    await harness.hear("something else of the same group 그리고 다른 이야기")

    assert len(await found(harness, text)) == is_found


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize("text", ["öl", "ÖL", "Öl", "är", "ärzte ÖL", "ΟΔΏΝ", "дн"])
async def test_letters_of_other_alphabets_are_found_in_either_case(harness, text, is_indexed):
    await harness.hear("Das Öl ist alle: frag die Ärzte. οδών, ДНИ")
    if not is_indexed:
        async with harness.database.transaction() as tx:
            await tx.execute("UPDATE message_search_progress SET from_seq = 1000")

    assert len(await found(harness, text)) == 1


@pytest.mark.parametrize("term", ["dentist", "the  Dentist", "straße"])
def test_an_excerpt_shows_its_term_whatever_stands_before_it(term):
    # Without case, each ß has two characters; and an excerpt has one space for two.
    text = "ß" * 200 + " the  Dentist in Wallstraße"
    shown = search.excerpt(text, term)
    assert shown.endswith("ß the Dentist in Wallstraße")
    assert shown.startswith("…ß")
    assert len(shown) <= 1 + search.CONTEXT_CHARS + len("the Dentist in Wallstraße")


async def test_the_newest_come_first_page_by_page_of_one_group_or_all(harness, clock):
    for number in range(5):
        await harness.hear(f"milk {number}", folder=("family", "work")[number % 2], sent_ms=clock.now_ms())
        clock.pass_ms(1_000)

    assert await found(harness, "milk") == [f"milk {number}" for number in (4, 3, 2, 1, 0)]
    assert await found(harness, "milk", "work") == ["milk 3", "milk 1"]
    assert await found(harness, "mi", "work") == ["milk 3", "milk 1"]
    assert await found(harness, "milk", since_ms=clock.now_ms() - 2_000) == ["milk 4", "milk 3"]
    async with harness.database.reading() as tx:
        first = await search.rows(tx, "milk", folder=None, limit=2)
    assert await found(harness, "milk", before_seq=first[-1]["seq"], limit=2) == ["milk 2", "milk 1"]


async def test_what_is_edited_taken_back_or_over_is_found_no_more(harness, tmp_path):
    await harness.hear("the first secret plan", id="M1")
    await harness.hear("the second secret plan", id="M2")
    first, second = await harness.messages()
    async with harness.database.transaction() as tx:
        await messages.rewrite(tx, first.seq, "the first open plan", is_request=False)
        await messages.blank(tx, second)

    assert await found(harness, "secret") == []
    assert await found(harness, "open plan") == ["the first open plan"]
    assert await indexed(harness, "secret") == 0
    await check_index(harness.database)

    async with harness.database.transaction() as tx:
        await tx.execute("UPDATE turns SET state = 'answered', ended_ms = 1")
        await tx.execute("UPDATE messages SET received_ms = 1")
    for number in range(501):
        await harness.hear(f"later {number}")
    days = RETENTION_DAYS | {"messages": 1}
    await Retention(harness.database, tmp_path, days=days, clock=harness.clock).sweep()

    assert await harness.rows("SELECT 1 FROM messages WHERE id = 'M1'") == []
    assert await indexed(harness, "open plan") == 0
    await check_index(harness.database)


HOSTILE = (
    '"', '""', '"open', "*", "plan*", "a OR", "NOT", "AND OR NOT", "NEAR(", "NEAR(a b, 2)", "content:x", "^x",
    "{a b}:", "-x", "+",
    "(((", "x' OR 1=1 --", "'; DROP TABLE messages", "%%%", "___", "!", "a!%", "\\", "\\%", "a\0b",
    "\u202e", "ö*", "Ö[", "]Ö", "ö?", "^é-", "x" * 200, " " * 200 + "", "🙂🙂🙂", "\ufdd0\ufdd0\ufdd0",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
async def test_no_text_is_a_mistake_of_syntax(harness, text):
    await harness.hear(f"before {text.replace(chr(0), ' ')} after")
    if text.replace('"', "").strip():
        assert len(await found(harness, text)) == 1, "each character stands for itself"
    else:
        with pytest.raises(BadSearch):
            await found(harness, text)


async def test_what_is_searched_for_is_bounded(harness):
    for text in ("", "  ", '" "', "x" * 201, " ".join("abcdefghi")):
        with pytest.raises(BadSearch):
            await found(harness, text)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_whatever_is_asked_is_answered_or_refused(database_of_two: Path, text: str):
    with closing(sqlite3.connect(database_of_two)) as connection:
        try:
            terms = message_search.parse_terms(text)
        except BadSearch:
            return
        match = " AND ".join(message_search._quoted(term) for term in terms)
        connection.execute("SELECT 1 FROM message_search WHERE message_search MATCH ?", (match,)).fetchall()
        for term in terms:
            scan = message_search._scan_for(term, name="pattern")
            query = f"SELECT 1 FROM (SELECT :content AS content) m WHERE {scan.condition}"
            values = {"content": term, "pattern": scan.pattern}
            assert connection.execute(query, values).fetchone() == (1,)


@pytest.fixture(scope="module")
def database_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("search") / "messages.db"
    _make(path, version=len(migrations()), texts=["one", "two"])
    return path


def _make(path: Path, *, version: int, texts: list[str]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for script in migrations()[:version]:
            connection.executescript(script)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("INSERT INTO chats (jid, name) VALUES ('local:family', 'Family')")
        connection.executemany(
            "INSERT INTO messages (chat_jid, id, sender, sender_name, content, sent_ms, received_ms,"
            " ignored_reason) VALUES ('local:family', ?, 'x', 'Jane', ?, 1, 1, 'no trigger')",
            [(f"M{number}", text) for number, text in enumerate(texts)],
        )
        connection.commit()


async def test_messages_of_before_the_index_are_found_at_once_and_indexed_bit_by_bit(tmp_path, monkeypatch):
    path = tmp_path / "messages.db"
    _make(path, version=BEFORE_THE_INDEX, texts=[f"old words {number}" for number in range(25)])
    database = await Database.open(path)
    try:
        async with database.transaction() as tx:
            assert await message_search.indexed_from(tx) == 26
            assert len(await message_search.find(tx, ["words"], limit=50)) == 25, "none is in the index"
            assert await message_search.fill(tx, batch=10)
        # What changes meanwhile is in the index or is not, on both sides of the border.
        async with database.transaction() as tx:
            await tx.execute("UPDATE messages SET content = 'new sense' WHERE seq IN (3, 20)")
            await tx.execute("DELETE FROM messages WHERE seq IN (4, 15, 21)")
            assert len(await message_search.find(tx, ["words"], limit=50)) == 20

        monkeypatch.setattr(search_index, "PAUSE_SECONDS", 0)
        monkeypatch.setattr(message_search.fill, "__kwdefaults__", {"batch": 7})
        await search_index.fill_search_index(database)

        await check_index(database)
        async with database.reading() as tx:
            assert await message_search.indexed_from(tx) <= 1
            assert len(await message_search.find(tx, ["words"], limit=50)) == 20
            assert [one.seq for one in await message_search.find(tx, ["sense"], limit=50)] == [20, 3]
    finally:
        await database.close()


async def test_secrets_are_not_shown_again(harness):
    await harness.hear("my password: hunter2 and the milk")

    assert await found(harness, "milk") == ["my password: [redacted] and the milk"]


async def test_an_agent_searches_its_own_chat_alone_and_no_copy_is_kept(harness):
    await harness.add_group("main", is_main=True)
    await harness.hear("the garden party of the family, password: hunter2")
    await harness.hear("the garden shed at work", folder="work")
    groups = {group: await _ask(harness, group, {"query": "garden"}) for group in ("family", "work", "main")}

    assert "garden party" in groups["family"].text
    assert "hunter2" not in groups["family"].text
    assert "shed" not in groups["family"].text
    assert "shed" in groups["work"].text
    assert groups["main"].text == "No message of this group has these words."
    assert await harness.rows("SELECT * FROM commands") == []
    refusal = await _ask(harness, "family", {"query": '""'})
    assert (refusal.ok, refusal.code) == (False, "bad_search")


async def test_an_agent_is_told_how_to_go_on(harness):
    for number in range(3):
        await harness.hear(f"milk {number}")
    first = await _ask(harness, "family", {"query": "milk", "limit": 2})
    assert first.text.endswith("There may be more: search again with before=2.")
    rest = await _ask(harness, "family", {"query": "milk", "before": 2})
    assert [line.split(": ")[1] for line in rest.text.splitlines()] == ["milk 0"]


async def _ask(harness: StoreHarness, folder: str, fields: dict[str, Any]) -> Any:
    (group,) = [one for one in await _groups(harness) if one.folder == folder]
    body = json.dumps({"type": "search_history", **fields}).encode()
    return await dispatcher_of(harness).handle(group, "f.json", body)


async def _groups(harness: StoreHarness) -> list[Any]:
    from orchestrator.store.groups import groups

    async with harness.database.reading() as tx:
        return await groups.every(tx)


def test_the_command_searches_with_andy_down(tmp_path, capsys):
    path = tmp_path / "store" / "messages.db"
    path.parent.mkdir()
    _make(path, version=len(migrations()), texts=["buy milk", "내일 날씨 알려줘"])
    app(["search", "날씨", "--home", str(tmp_path)], result_action="return_value")
    assert "Jane: 내일 날씨 알려줘" in capsys.readouterr().out
    app(["search", "milk", "--json", "--home", str(tmp_path)], result_action="return_value")
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["seq"], row["group"], row["chat"], row["text"]) == (1, None, "local:family", "buy milk")
    with pytest.raises(BadSearch):
        app(["search", '""', "--home", str(tmp_path)], result_action="return_value")
