"""The skills that a container is given, and the programs of those that come with Andy."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any, cast

import pytest

from agent_runner.tools.table import tools_for
from agent_runner.tools.wire import DASHBOARD_TOOLS
from orchestrator.cli.main import app
from orchestrator.containers.run_orders import RunOrders
from orchestrator.groups import skills
from orchestrator.groups.settings import ConfigRefused
from orchestrator.store.runs import runs
from tests.support.host_contexts import host_context
from tests.support.pdfs import a_pdf
from tests.support.store_harness import StoreHarness

SHIPPED = ["chart", "summarise-pdf", "weekly-review"]
PNG = b"\x89PNG\r\n\x1a\n"


def names_in(plugin: Path | None) -> list[str]:
    return sorted(path.name for path in (plugin / "skills").iterdir()) if plugin else []


def a_skill(home: Path, name: str, text: str = "---\ndescription: x\n---\n") -> Path:
    folder = home / "skills" / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text)
    return folder


def test_a_group_has_the_shipped_skills_and_the_owners_or_those_it_is_given(tmp_path: Path) -> None:
    assert names_in(skills.make_plugin(tmp_path, "family", None, is_in_use=False)) == SHIPPED
    own = a_skill(tmp_path, "garden")
    (own / "plants.txt").write_text("roses")
    a_skill(tmp_path, "chart", "mine")
    (tmp_path / "skills" / "no-skill").mkdir()
    made = skills.make_plugin(tmp_path, "family", None, is_in_use=False)
    assert names_in(made) == ["chart", "garden", "summarise-pdf", "weekly-review"]
    assert made is not None
    assert (made / "skills" / "chart" / "SKILL.md").read_text() == "mine", "the owner's goes first"
    assert json.loads((made / ".claude-plugin" / "plugin.json").read_text())["name"] == "andy"
    assert names_in(skills.make_plugin(tmp_path, "family", ("garden", "unheard-of"), is_in_use=False)) == [
        "garden"
    ]
    assert skills.make_plugin(tmp_path, "family", (), is_in_use=False) is None


def test_the_copy_is_made_anew_only_when_something_has_changed(tmp_path: Path) -> None:
    own = a_skill(tmp_path, "garden")
    first = skills.make_plugin(tmp_path, "family", ("garden",), is_in_use=False)
    assert first == skills.make_plugin(tmp_path, "family", ("garden",), is_in_use=False)
    (own / "SKILL.md").write_text("other")
    second = skills.make_plugin(tmp_path, "family", ("garden",), is_in_use=False)
    assert second != first
    assert [path.name for path in (tmp_path / "data" / "skills" / "family").iterdir()] == [second.name]


async def test_a_copy_stays_as_long_as_another_container_of_the_group_may_use_it(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    own = a_skill(tmp_path, "garden")
    group = await store_harness.add_group(container_config={"skills": ["garden"]})
    host, unused = host_context(store_harness, tmp_path), cast("Any", None)
    orders = RunOrders(host, credentials=unused, proxies=unused, uid=os.getuid())

    async def laid() -> Path:
        return next(one.source for one in await orders.prepare(group) if one.target == "/workspace/skills")

    run = await store_harness.begin_run()
    first = await laid()
    (own / "SKILL.md").write_text("other")
    await store_harness.begin_run()
    second = await laid()
    assert second != first
    assert names_in(first) == ["garden"]
    async with store_harness.database.transaction() as tx:
        await runs.end(tx, run.id, kind="closed", detail="", now_ms=1)
    assert await laid() == second
    assert list(second.parent.iterdir()) == [second]


def test_a_link_in_a_skill_leads_nowhere_and_what_is_laid_can_be_read_by_any_user(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    own = a_skill(tmp_path, "garden")
    (own / "leak").symlink_to(tmp_path / "secret")
    (own / "deep").mkdir()
    (own / "deep" / "more.txt").write_text("more")
    before = os.umask(0o077)
    try:
        made = skills.make_plugin(tmp_path, "family", ("garden",), is_in_use=False)
    finally:
        os.umask(before)
    assert made is not None
    assert not (made / "skills" / "garden" / "leak").exists()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (made, *made.rglob("*"))}
    assert modes == {0o755, 0o644}


def test_a_file_of_a_skill_whose_name_is_no_utf_8_is_copied_too(tmp_path: Path) -> None:
    own = a_skill(tmp_path, "garden")
    (own / "caf\udce9.txt").write_text("more")
    made = skills.make_plugin(tmp_path, "family", ("garden",), is_in_use=False)
    assert made is not None
    assert (made / "skills" / "garden" / "caf\udce9.txt").read_text() == "more"


def test_skills_that_are_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "MAX_BYTES", 10)
    with pytest.raises(OSError, match="above"):
        skills.make_plugin(tmp_path, "family", None, is_in_use=False)


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    own = a_skill(tmp_path, "garden")
    with (own / "model.bin").open("wb") as file:
        file.truncate(skills.MAX_BYTES * 20)
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match=r"at .*model\.bin"):
            skills.make_plugin(tmp_path, "family", ("garden",), is_in_use=False)
        assert tracemalloc.get_traced_memory()[1] < skills.MAX_BYTES * 3
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_skill_costs_the_model_few_words_until_it_is_needed(name: str) -> None:
    text = (skills.available(Path("/nowhere"))[name] / "SKILL.md").read_text()
    _, head, body = text.split("---", 2)
    assert f"name: {name}\n" in head
    assert len(head) < 220
    assert len(body) < 2_000


def test_the_tools_that_the_weekly_review_names_are_there() -> None:
    text = (skills.available(Path("/nowhere"))["weekly-review"] / "SKILL.md").read_text()
    named = {word for word in re.findall(r"`([a-z_]+)`", text) if "_" in word}
    offered = {tool.name for tool in (*tools_for(is_main=False), *DASHBOARD_TOOLS)}
    assert named
    assert named - offered == set()


def run(name: str, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    script = skills.available(Path("/nowhere"))[name] / program
    return subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", ["bar", "line", "pie"])
def test_a_chart_is_drawn_as_a_picture(tmp_path: Path, kind: str) -> None:
    numbers = {"a": [3, 0, 1_250.5]} if kind == "pie" else {"a": [3, -2, 1_250.5], "나": [0, 1, 2]}
    chart = {
        "kind": kind,
        "title": "지출 <& more>",
        "unit": "€",
        "labels": ["월", "화", "수"],
        "series": numbers,
    }
    (tmp_path / "chart.json").write_text(json.dumps(chart))
    done = run("chart", "draw.py", str(tmp_path / "chart.json"), str(tmp_path / "chart.png"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "chart.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("chart", "words"),
    [
        ([], "has to be an object"),
        ({"labels": [], "series": {"a": []}}, "labels has to be"),
        ({"labels": ["x"], "series": {"a": [1, 2]}}, "'a' has to have 1 numbers"),
        ({"labels": ["x"], "series": {"a": ["1"]}}, "no number"),
        ({"labels": ["x"], "series": {"a": [10**400]}}, "beyond 1e+300"),
        ({"labels": ["x"], "series": {"a": [1]}, "kind": "3d"}, "kind has to be"),
        ({"labels": ["x"], "series": {"a": [-1]}, "kind": "pie"}, "none below zero"),
    ],
)
def test_numbers_that_cannot_be_drawn_are_refused_in_a_line(
    tmp_path: Path, chart: object, words: str
) -> None:
    (tmp_path / "chart.json").write_text(json.dumps(chart))
    done = run("chart", "draw.py", str(tmp_path / "chart.json"), str(tmp_path / "chart.png"))
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_text_of_a_pdf_comes_page_by_page(tmp_path: Path) -> None:
    (tmp_path / "bill.pdf").write_bytes(a_pdf("Invoice 4711", "", "due on Friday"))
    done = run("summarise-pdf", "pdf_text.py", str(tmp_path / "bill.pdf"))
    assert done.stdout.splitlines()[0] == "3 pages; of 3 read, 1 have no text."
    assert "--- page 1 ---\nInvoice 4711" in done.stdout
    assert "--- page 3 ---\ndue on Friday" in done.stdout
    some = run("summarise-pdf", "pdf_text.py", str(tmp_path / "bill.pdf"), "--pages", "3-9")
    assert "Invoice" not in some.stdout
    assert "due on Friday" in some.stdout
    rest = run("summarise-pdf", "pdf_text.py", str(tmp_path / "bill.pdf"), "--pages", "2-")
    assert rest.stdout.splitlines()[0] == "3 pages; of 2 read, 1 have no text."


def test_the_last_pages_of_a_long_pdf_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "book.pdf").write_bytes(a_pdf(*("a line" for _ in range(510)), "the end"))
    done = run("summarise-pdf", "pdf_text.py", str(tmp_path / "book.pdf"))
    assert done.stdout.splitlines()[0] == "511 pages; of 500 read, 0 have no text."
    last = run("summarise-pdf", "pdf_text.py", str(tmp_path / "book.pdf"), "--pages", "505-511")
    assert last.stdout.splitlines()[0] == "511 pages; of 7 read, 0 have no text."
    assert "the end" in last.stdout


@pytest.mark.parametrize("content", [b"", b"no PDF", a_pdf("x")[:60]])
def test_a_file_that_is_no_pdf_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.pdf").write_bytes(content)
    done = run("summarise-pdf", "pdf_text.py", str(tmp_path / "odd.pdf"))
    assert "Traceback" not in done.stderr
    assert done.returncode == 1 or "0 pages" in done.stdout


def test_a_skill_that_is_not_there_is_refused_with_the_names_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANDY_HOME", str(tmp_path))
    andy("groups", "register", "family")
    with pytest.raises(
        ConfigRefused, match="no skill 'garden': there are chart, summarise-pdf, weekly-review"
    ):
        andy("groups", "config", "family", "--set", '{"skills": ["chart", "garden"]}')
    with pytest.raises(ConfigRefused, match="valid string"):
        andy("groups", "config", "family", "--set", '{"skills": [["chart"]]}')
    a_skill(tmp_path, "garden")
    andy("groups", "config", "family", "--set", '{"skills": ["chart", "garden"]}')
    andy("groups", "config", "family", "--set", '{"skills": null}')
    assert '["chart", "garden"]' in capsys.readouterr().out


def andy(*words: str) -> None:
    app([*words], exit_on_error=False, print_error=False, result_action="return_value")
