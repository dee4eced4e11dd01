from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.groups.registration import FolderRefused, checked_folder


@pytest.mark.parametrize("name", ["main", "family", "A1", "a_b-c", "0", "x" * 64])
def test_letters_digits_hyphen_and_underscore_make_a_folder(name):
    assert checked_folder(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "x" * 65, "-a", "_a", ".", "..", "../x", "a/b",
     "a\\b", "a b", "a\n", "가족", "é", "a.b", "a:b", "a\x00"],
)  # fmt: skip
def test_anything_else_is_refused_with_the_rule(name):
    with pytest.raises(FolderRefused, match="letters, digits"):
        checked_folder(name)


@pytest.mark.parametrize("name", ["global", "Global", "errors", "ERRORS"])
def test_names_the_host_uses_are_reserved_in_any_case(name):
    with pytest.raises(FolderRefused, match="reserved"):
        checked_folder(name)


@given(st.text(max_size=70))
def test_a_name_that_passes_stays_within_its_parent(name):
    try:
        folder = checked_folder(name)
    except FolderRefused:
        return
    assert folder.isascii()
    assert not set(folder) & set("./\\: \n")
