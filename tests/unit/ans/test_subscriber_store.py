"""Subscribers and templates of the group: added, changed and switched off while it runs."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest

from agent_runner.ans.accumulator import Accumulator
from agent_runner.ans.event import NoticeEvent
from agent_runner.ans.formatter import Formatter
from agent_runner.ans.subscriber_store import MAX_FILE_BYTES, MAX_OF_GROUP, SubscriberFolder, SubscriberStore


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "subscribers"
    folder.mkdir()
    return folder


@pytest.fixture
def shelves(tmp_path: Path) -> SubscriberStore:
    return SubscriberStore(tmp_path)


def own_ids(shelf: SubscriberFolder) -> list[str]:
    return [each.id for each in shelf.subscribers if each.is_of_group]


def test_without_a_folder_there_are_the_shipped_ones(tmp_path):
    for shelves in (SubscriberStore(None), SubscriberStore(tmp_path / "nowhere")):
        shelf = shelves.read()
        assert len(shelf.subscribers) >= 9
        assert own_ids(shelf) == []
        assert shelves.read() is shelf


def test_a_file_is_all_it_takes_to_add_one_while_it_runs(own, shelves, as_toml):
    """N-25, SC-007."""
    before = shelves.read()
    (own / "probe.toml").write_text(as_toml())
    (own / "probe.j2").write_text("probe: {{ event.type }}\n")

    after = shelves.read()

    assert own_ids(after) == ["probe"]
    assert after.template_named(after.subscribers[-1]) == "probe: {{ event.type }}\n"
    assert after is not before
    assert shelves.read() is after

    (own / "probe.toml").unlink()
    assert own_ids(shelves.read()) == []


def test_a_broken_one_is_named_in_one_line_once_and_the_others_load(own, shelves, as_toml, caplog):
    """B.4."""
    (own / "a_broken.toml").write_text("[subscriber")
    (own / "b_wrong.toml").write_text(as_toml(output__priority="urgent"))
    (own / "c_good.toml").write_text(as_toml(output__template="tool_failure.j2"))
    with caplog.at_level(logging.WARNING):
        assert own_ids(shelves.read()) == ["probe"]
        shelves.read()

    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("subscriber a_broken.toml is skipped: it is no TOML")
    assert caplog.messages[1].startswith("subscriber b_wrong.toml is skipped: output.priority:")


def test_two_of_one_name_are_one_and_none_takes_the_place_of_a_shipped_one(own, shelves, as_toml, caplog):
    """B.4: ids are unique."""
    (own / "a.toml").write_text(as_toml(events__types=["first.*"]))
    (own / "b.toml").write_text(as_toml(events__types=["second.*"]))
    (own / "c.toml").write_text(as_toml(subscriber__id="tool_failure"))

    shelf = shelves.read()

    assert own_ids(shelf) == ["probe"]
    assert shelf.subscribers[-1].events.types == ["first.*"]
    assert "'tool_failure' is taken" in caplog.text


def test_one_whose_template_is_missing_loads_and_says_so(own, shelves, as_toml, caplog):
    """B.4, N-32."""
    (own / "probe.toml").write_text(as_toml())

    shelf = shelves.read()

    assert own_ids(shelf) == ["probe"]
    assert shelf.template_named(shelf.subscribers[-1]) is None
    assert caplog.messages == ["subscriber probe uses the plain form: no template probe.j2"]


def test_a_template_of_the_group_is_for_its_own_subscribers_alone(own, shelves, as_toml):
    (own / "tool_failure.j2").write_text("mine\n")
    (own / "probe.toml").write_text(as_toml(output__template="tool_failure.j2"))

    shelf = shelves.read()
    shipped = next(each for each in shelf.subscribers if each.id == "tool_failure")

    assert shelf.template_named(shelf.subscribers[-1]) == "mine\n"
    assert "tool_fail: " in (shelf.template_named(shipped) or "")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ event", "line 1"),
        ("{% for a in events %}{% for b in events %}x{% endfor %}{% endfor %}", "a loop in a loop"),
        ("{% for a in events recursive %}{{ loop(events) }}{% endfor %}", "is not for templates of a group"),
        ("{{ 'x' * 1000000000 }}", "Mul is not"),
        ("{{ 2 ** 99999999 }}", "Pow is not"),
        ("{{ '%1000000000d' % 1 }}", "Mod is not"),
        ("{{ range(100000) }}", "Call is not"),
        ("{{ event.type.zfill(1000000000) }}", "Call is not"),
        ("{{ event.type|center(1000000000) }}", "there is no filter 'center'"),
        ("{% set a = 'x' %}{{ a }}", "Assign is not"),
        ("{% macro m() %}{{ m() }}{% endmacro %}", "Macro is not"),
        ("{% include 'tool_failure.j2' %}", "Include is not"),
        ("{{ ''.__class__.__mro__ }}{{ x() }}", "Call is not"),
        ("{{ " + "1" * 5_000 + " }}", "5000 digits"),
        ("{{ " + "(" * 2_000 + "1" + ")" * 2_000 + " }}", "nested too deep"),
        ("{{ event" + ".a" * 2_000 + " }}", "nested too deep"),
    ],
)
def test_a_template_that_could_go_on_for_ever_is_skipped_with_the_reason(
    own, shelves, caplog, source, reason
):
    (own / "probe.j2").write_text(source)
    (own / "fine.j2").write_text("{% for each in events %}{{ each.type|truncate(20) ~ '!' }} {% endfor %}")

    shelf = shelves.read()

    assert set(shelf.group_templates) == {"fine.j2"}
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("template probe.j2 is skipped: line 1")
    assert reason in caplog.messages[0]


def test_a_list_switches_off_while_it_runs(own, shelves):
    """N-25."""
    assert shelves.read().disabled == frozenset()

    (own / "disabled.txt").write_text("# not now\nself_notify\n session_resumed  # for a while\n\n")

    assert shelves.read().disabled == {"self_notify", "session_resumed"}


def test_links_pipes_and_folders_are_neither_followed_nor_waited_for(own, shelves, as_toml, tmp_path):
    outside = tmp_path / "outside.toml"
    outside.write_text(as_toml())
    (own / "link.toml").symlink_to(outside)
    os.mkfifo(own / "pipe.toml")
    (own / "folder.toml").mkdir()
    os.mkfifo(own / "pipe.j2")
    (own / "disabled.txt").symlink_to(outside)

    shelf = shelves.read()

    assert own_ids(shelf) == []
    assert shelf.disabled == frozenset()
    assert shelf.group_templates == {}


def test_a_folder_that_is_a_link_is_no_folder(tmp_path, shelves, as_toml):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "probe.toml").write_text(as_toml())
    (tmp_path / "subscribers").symlink_to(elsewhere)

    assert own_ids(shelves.read()) == []


def test_a_long_file_and_one_of_no_text_are_skipped_and_of_many_the_first_are_taken(
    own, shelves, as_toml, caplog
):
    (own / "a_long.toml").write_text(as_toml() + "#" * MAX_FILE_BYTES)
    (own / "a_bytes.toml").write_bytes(b"\xff\xfe\x00")
    for number in range(MAX_OF_GROUP + 10):
        (own / f"b{number:03}.toml").write_text(
            as_toml(subscriber__id=f"probe{number}", output__template="discovery.j2")
        )

    shelf = shelves.read()

    assert len(own_ids(shelf)) == MAX_OF_GROUP - 2
    assert "a_long.toml is skipped: it is longer than 16,384 bytes" in caplog.messages
    assert any(message.startswith("a_bytes.toml is skipped") for message in caplog.messages)
    assert "only the first 50 of 62 subscribers of the group are used" in caplog.messages


def test_a_name_that_is_made_to_confuse_a_log_stays_in_its_line(own, shelves, caplog):
    (own / "a\nERROR all is lost.toml").write_text("[x")

    shelves.read()

    assert "\n" not in caplog.messages[0]


def test_the_example_in_the_documentation_works(own, shelves, caplog):
    """SC-007: what is copied from there is told."""
    documented = (Path(__file__).resolve().parents[3] / "docs" / "notices.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", documented, re.DOTALL | re.MULTILINE)
    for name in ("slow_commands.toml", "slow_commands.j2"):
        block = next(each for each in blocks if f"groups/family/subscribers/{name}" in each.splitlines()[0])
        (own / name).write_text(block)

    shelf = shelves.read()
    subscriber = next(each for each in shelf.subscribers if each.is_of_group)
    accumulator = Accumulator(subscriber)
    for order, (tool, duration_ms) in enumerate((("Bash", 12), ("Read", 3), ("Bash", 15))):
        payload = {"tool_name": tool, "call_id": "c", "duration_ms": duration_ms, "result_length": 3}
        accumulator.accept(
            NoticeEvent(type="tool.call.success", source="agent", payload=payload), order=order
        )

    (due,) = accumulator.due({"turn_start"})

    assert Formatter(lambda each: shelf.template_named(each.subscriber)).text(due).splitlines() == [
        "took: Bash 15 ms (2×)",
        "took: Read 3 ms",
    ]
    assert caplog.messages == []
