from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.checklists import (
    MAX_FILE_BYTES,
    MAX_ITEM_CHARS,
    TODO,
    Checklists,
    Item,
    ListError,
    ListProblem,
    file_stem,
)


@pytest.fixture
def group(tmp_path: Path) -> Path:
    directory = tmp_path / "group"
    directory.mkdir()
    return directory


@pytest.fixture
def checklists(group: Path) -> Checklists:
    return Checklists(group)


def problem_of(error: pytest.ExceptionInfo[ListError]) -> ListProblem:
    return error.value.problem


def tick(checklists: Checklists, name: str, which: str, *, is_done: bool) -> Item:
    (item,) = found = checklists.find(name, [which], is_done=not is_done)
    checklists.tick(name, found, is_done=is_done)
    return item


def test_a_list_begins_with_its_first_entry(checklists: Checklists, group: Path) -> None:
    checklists.add("Weekend Trip", ["tent", "map"])
    assert (group / "lists" / "weekend-trip.md").read_text() == "# Weekend Trip\n\n- [ ] tent\n- [ ] map\n"


def test_to_dos_lie_beside_the_lists(checklists: Checklists, group: Path) -> None:
    checklists.add(TODO, ["우표 사기"])
    assert (group / "todo.md").read_text() == "# To-do\n\n- [ ] 우표 사기\n"


def test_an_open_entry_is_not_repeated_but_a_done_one_opens_anew(checklists: Checklists) -> None:
    checklists.add("shopping", ["milk"])
    assert checklists.add("shopping", ["Milk", "eggs"]).there_already == ("Milk",)
    tick(checklists, "shopping", "milk", is_done=True)
    assert checklists.add("shopping", ["milk"]).new == ("milk",)
    assert [(item.text, item.is_done) for item in checklists.items("shopping")] == [
        ("milk", True),
        ("eggs", False),
        ("milk", False),
    ]


def test_numbers_stay_when_others_are_done(checklists: Checklists) -> None:
    checklists.add(TODO, ["one", "two", "three"])
    tick(checklists, TODO, "1", is_done=True)
    assert tick(checklists, TODO, "2", is_done=True).text == "two"
    assert [item.number for item in checklists.items(TODO) if not item.is_done] == [3]


def test_finishing_twice_changes_nothing(checklists: Checklists, group: Path) -> None:
    checklists.add(TODO, ["one", "two"])
    tick(checklists, TODO, "1", is_done=True)
    before = (group / "todo.md").read_text()
    assert tick(checklists, TODO, "1", is_done=True).text == "one"
    assert (group / "todo.md").read_text() == before


def test_a_part_of_a_text_is_enough_when_one_entry_fits(checklists: Checklists) -> None:
    checklists.add(TODO, ["buy stamps", "buy bread"])
    assert tick(checklists, TODO, "stamps", is_done=True).text == "buy stamps"
    with pytest.raises(ListError) as error:
        tick(checklists, TODO, "y", is_done=True)
    assert problem_of(error) is ListProblem.NO_ITEM
    checklists.add(TODO, ["buy milk"])
    with pytest.raises(ListError) as error:
        tick(checklists, TODO, "buy", is_done=True)
    assert problem_of(error) is ListProblem.MANY_ITEMS


def test_what_a_person_wrote_into_the_file_is_kept(checklists: Checklists, group: Path) -> None:
    written = "My list\r\n\r\n* [ ] milk  \r\n\t- [X] eggs\r\n1. bread\r\nnotes: none\r\n"
    (group / "todo.md").write_bytes(written.encode())
    checklists.add(TODO, ["tea"])
    tick(checklists, TODO, "bread", is_done=True)
    expected = written.replace("1. bread\r\n", "1. [x] bread\r\n- [ ] tea\r\n")
    assert (group / "todo.md").read_bytes().decode() == expected
    checklists.take_out(TODO, checklists.find(TODO, ["milk"]))
    checklists.take_out(TODO, [item for item in checklists.items(TODO) if item.is_done])
    assert (group / "todo.md").read_bytes().decode() == "My list\r\n\r\n- [ ] tea\r\nnotes: none\r\n"


def test_a_file_without_a_last_line_end_is_continued_on_a_new_line(
    checklists: Checklists, group: Path
) -> None:
    (group / "todo.md").write_text("- [ ] milk")
    checklists.add(TODO, ["tea"])
    assert (group / "todo.md").read_text() == "- [ ] milk\n- [ ] tea\n"


def test_an_entry_is_one_line(checklists: Checklists) -> None:
    checklists.add(TODO, ["buy\n- [x] nothing"])
    assert [item.text for item in checklists.items(TODO)] == ["buy - [x] nothing"]


def test_an_entry_has_an_end(checklists: Checklists) -> None:
    with pytest.raises(ListError) as error:
        checklists.add(TODO, ["x" * (MAX_ITEM_CHARS + 1)])
    assert problem_of(error) is ListProblem.ITEM_TOO_LONG


@pytest.mark.parametrize(
    "name", ["../todo", "a/b", ".hidden", "a.md", "", "-", "x" * 41, "a\0b", "..", "~", "a*"]
)
def test_a_name_that_could_leave_the_directory_is_refused(checklists: Checklists, name: str) -> None:
    with pytest.raises(ListError) as error:
        checklists.add(name, ["x"])
    assert problem_of(error) is ListProblem.BAD_NAME


@given(st.text(max_size=50))
def test_a_name_that_is_taken_is_a_plain_file_name(name: str) -> None:
    try:
        stem = file_stem(name)
    except ListError:
        return
    assert Path(stem).name == stem
    assert not stem.startswith(".")
    assert len(stem.encode()) < 200


def test_a_list_that_is_not_there_is_said_so(checklists: Checklists) -> None:
    with pytest.raises(ListError) as error:
        checklists.items("shopping")
    assert problem_of(error) is ListProblem.NO_LIST


def test_a_link_out_of_the_directory_is_neither_read_nor_written(checklists: Checklists, group: Path) -> None:
    outside = group.parent / "secret.md"
    outside.write_text("- [ ] secret\n")
    (group / "todo.md").symlink_to(outside)
    (group / "lists").symlink_to(group.parent)
    for attempt in (
        lambda: checklists.items(TODO),
        lambda: checklists.add(TODO, ["x"]),
        lambda: checklists.items("secret"),
        lambda: checklists.add("new", ["x"]),
        lambda: checklists.names(),
    ):
        with pytest.raises(ListError) as error:
            attempt()
        assert problem_of(error) is ListProblem.NOT_OURS
    assert outside.read_text() == "- [ ] secret\n"
    assert not (group.parent / "new.md").exists()


def test_a_link_within_the_directory_stays_a_link(checklists: Checklists, group: Path) -> None:
    (group / "real.md").write_text("- [ ] milk\n")
    (group / "todo.md").symlink_to("real.md")
    tick(checklists, TODO, "1", is_done=True)
    assert (group / "todo.md").is_symlink()
    assert (group / "real.md").read_text() == "- [x] milk\n"


def test_links_in_a_ring_are_refused(checklists: Checklists, group: Path) -> None:
    (group / "todo.md").symlink_to("todo.md")
    with pytest.raises(ListError) as error:
        checklists.items(TODO)
    assert problem_of(error) is ListProblem.NOT_OURS


def test_what_is_no_plain_text_file_is_left_alone(checklists: Checklists, group: Path) -> None:
    (group / "lists").mkdir()
    os.mkfifo(group / "lists" / "pipe.md")
    (group / "lists" / "folder.md").mkdir()
    (group / "lists" / "binary.md").write_bytes(b"\xff\xfe")
    (group / "lists" / "huge.md").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    for name in ("pipe", "folder", "binary", "huge"):
        with pytest.raises(ListError) as error:
            checklists.add(name, ["x"])
        assert problem_of(error) is ListProblem.NOT_OURS, name


def test_lists_are_named_in_order(checklists: Checklists) -> None:
    for name in ("장보기", "books", TODO):
        checklists.add(name, ["x"])
    assert checklists.names() == ["books", "장보기"]


def test_several_entries_are_found_together_or_none_is(checklists: Checklists) -> None:
    checklists.add(TODO, ["oat milk", "cow milk", "eggs"])
    assert [item.number for item in checklists.find(TODO, ["eggs", "oat milk", "milk"])] == [3, 1, 2]
    with pytest.raises(ListError) as error:
        checklists.find(TODO, ["eggs", "eggs"])
    assert problem_of(error) is ListProblem.NO_ITEM
