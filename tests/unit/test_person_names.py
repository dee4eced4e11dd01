"""Names of people in texts: whole words, with particles, and never a part of another name."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.domain.values import Role
from orchestrator.groups import people, person_names
from orchestrator.groups.people import AmbiguousPerson, GroupPerson, UnknownPerson

NAMES = st.text(st.characters(codec="utf-8", categories=("L", "Nd", "Zs", "Mn", "So", "P")), max_size=12)


def a_person(address: str, name: str, *aliases: str) -> GroupPerson:
    return GroupPerson(
        address=address, name=name, role=Role.MEMBER, has_own_role=False, aliases=aliases, since_ms=None
    )


@pytest.mark.parametrize(
    ("text", "name", "is_there"),
    [
        ("Mina likes tea", "Min", False),
        ("Mina likes tea", "mina", True),
        ("Tea is Mina's.", "Mina", True),
        ("@Mina: tea?", "Mina", True),
        ("Minas Tirith", "Mina", False),
        ("Carmina Burana", "Mina", False),
        ("Ｍｉｎａ likes tea", "Mina", True),
        ("Mina는 차를 좋아해", "Mina", True),
        ("민아는 차를 좋아해", "민아", True),
        ("민아는 차를 좋아해", "민", False),
        ("민은 차를 좋아해", "민", True),
        ("미나에게 줘", "미나", True),
        ("미나씨는 안 와", "미나", True),
        ("미나리를 사", "미나", False),
        ("지은이가 왔어", "지은", True),
        ("a cat", "a", False),
        ("…", "…", False),
        ("José was here", "Jose\u0301", True),
        ("Jose\u0301 was here", "Jose", False),
        ("Evet, ibrahim geldi.", "İbrahim", True),
        ("Evet, İBRAHİM geldi.", "Ibrahim", True),
        ("Evet, i\u0307brahim geldi.", "İbrahim", True),
    ],
)
def test_a_name_is_a_word_of_its_own(text: str, name: str, is_there: bool) -> None:
    assert person_names.is_named(text, name) is is_there


@given(NAMES, st.sampled_from(["", "a", "x1", "é", "나", "9"]))
@example("Min", "a")
@example("미나", "리")
def test_a_longer_name_does_not_have_a_shorter_one_in_it(name: str, more: str) -> None:
    longer = person_names.folded(name) + more
    is_whole = more == "" or longer[-1:] == "나"  # a particle, too: 미나나
    if person_names.is_searchable(name) and person_names.folded(name)[-1:].isalnum() and not is_whole:
        assert not person_names.is_named(f"so {longer} says", name) or " " in longer


@given(NAMES, NAMES)
def test_what_is_taken_out_is_there_no_more_and_nothing_else_changes(name: str, text: str) -> None:
    left = person_names.without(text, [name], word="[someone]")
    if not person_names.is_named(text, name):
        assert left == text
    assert person_names.found_in(text, [name, name]) in ([], [person_names.folded(name)])


@pytest.mark.parametrize(
    ("name", "text", "left"),
    [
        ("Großmann", "Herr Großmann kam, GROSSMANN ging.", "Herr [someone] kam, [someone] ging."),
        ("Grossmann", "Großmann's Straße", "[someone]'s Straße"),
        ("İbrahim", "Evet, İbrahim geldi.", "Evet, [someone] geldi."),
        ("Ibrahim", "Evet, i\u0307brahim geldi.", "Evet, [someone] geldi."),
        ("Ali", "İ: Ali\u0307 geldi, ALİ gitti.", "İ: [someone] geldi, [someone] gitti."),
    ],
)
def test_a_name_is_taken_out_in_each_of_its_spellings(name: str, text: str, left: str) -> None:
    assert person_names.without(text, [name], word="[someone]") == left


@given(st.lists(st.tuples(NAMES, st.text(min_size=1, max_size=8)), min_size=1, unique_by=lambda one: one[1]))
def test_an_address_always_finds_its_own_person(listed: list[tuple[str, str]]) -> None:
    known = [a_person(f"local:{address}", name) for name, address in listed]
    for one in known:
        if one.address == one.address.strip():
            assert people.named(known, one.address) is one


def test_a_whole_name_counts_before_the_first_word_of_another() -> None:
    mina, kim, other = a_person("1", "Mina"), a_person("2", "Mina Kim"), a_person("3", "Jun Park")
    assert people.named([mina, kim], "mina") is mina
    assert people.named([kim, other], "@Jun") is other
    assert people.mentioned([mina, kim, other], "Mina Kim is late") == [kim]
    with pytest.raises(AmbiguousPerson, match=r"2 .*3"):
        people.named([a_person("2", "Mina Kim"), a_person("3", "Mina Lee")], "Mina")
    with pytest.raises(UnknownPerson) as refused:
        people.named([kim], "Zoe", shows_others=False)
    assert "Mina" not in str(refused.value)


def test_a_turkish_name_finds_its_person_with_and_without_the_dot() -> None:
    ibrahim = a_person("1", "İbrahim")
    assert people.named([ibrahim], "ibrahim") is ibrahim


def test_both_addresses_find_one_person() -> None:
    mina = a_person("49@s.whatsapp.net", "Mina", "77@lid")
    assert people.named([mina], "77@lid") is mina
