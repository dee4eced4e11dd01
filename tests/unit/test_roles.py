"""A role may do what the table and a group's settings say."""

from __future__ import annotations

import pytest

from orchestrator.domain.values import Role, least
from orchestrator.groups import roles, settings
from orchestrator.groups.roles import RULES, Permission, Rights
from orchestrator.groups.settings import ConfigRefused, GroupConfig
from tests.support.store_harness import a_group

FAMILY, MAIN = a_group(), a_group("main", is_main=True)
PHONE, LID = "491701234567@s.whatsapp.net", "1999@lid"


def role_of(*addresses: str, config: GroupConfig | None = None, group=FAMILY, is_from_me=False) -> Role:
    return roles.role_of(group, config or GroupConfig(), addresses, is_from_me=is_from_me)


def test_without_settings_everybody_is_a_member_and_in_main_the_owner():
    assert role_of(PHONE) is Role.MEMBER
    assert role_of(PHONE, group=MAIN) is Role.OWNER
    assert role_of(PHONE, is_from_me=True) is Role.OWNER


def test_a_role_goes_by_the_whole_address_and_the_owner_of_the_account_stays_the_owner():
    config = settings.checked({"people": {PHONE: "owner", "*": "guest"}})
    assert role_of(PHONE, config=config) is Role.OWNER
    for other in ("491701234567", f"{PHONE} ", PHONE.upper(), f"x{PHONE}", "*", ""):
        assert role_of(other, config=config) is Role.GUEST, other
    assert (
        role_of(PHONE, config=settings.checked({"people": {PHONE: "guest"}}), is_from_me=True) is Role.OWNER
    )


def test_under_two_roles_the_lesser_counts():
    config = settings.checked({"people": {PHONE: "owner", LID: "guest"}})
    assert role_of(PHONE, LID, config=config) is Role.GUEST
    assert least([Role.OWNER, Role.GUEST, Role.MEMBER]) is Role.GUEST
    assert least([]) is Role.OWNER


def test_a_group_changes_the_rules_of_members_and_guests_and_never_those_of_an_owner():
    config = settings.checked({"roles": {"guest": {"call": False, "mcp": True, "spend": 5}}})
    assert roles.rights_of(Role.GUEST, config) == Rights(may=frozenset({Permission.MCP}), spend=5)
    assert roles.rights_of(Role.MEMBER, config) == RULES[Role.MEMBER]
    for refused in ({"owner": {"call": False}}, {"guest": {"command": True}}, {"guest": {"spend": 101}}):
        with pytest.raises(ConfigRefused):
            settings.checked({"roles": refused})


def test_a_guest_may_never_do_more_than_a_member():
    config = settings.checked({"roles": {"member": {"mcp": False, "spend": 10}, "guest": {"mcp": True}}})
    guest, member = (roles.rights_of(one, config) for one in (Role.GUEST, Role.MEMBER))
    assert guest.may <= member.may
    assert (member.spend, guest.spend) == (10, 10)


def test_only_who_may_do_everything_shares_a_container():
    assert not roles.is_restricted(RULES[Role.OWNER], FAMILY)
    assert not roles.is_restricted(RULES[Role.MEMBER], FAMILY)
    assert roles.is_restricted(RULES[Role.GUEST], FAMILY)
    for one in roles.SHARED:
        assert roles.is_restricted(Rights(may=frozenset(Permission) - {one}), FAMILY)


@pytest.mark.parametrize(
    ("role", "askers", "is_only_asker", "may"),
    [
        (Role.OWNER, [Role.MEMBER, Role.OWNER], False, True),
        (Role.MEMBER, [Role.MEMBER], False, False),
        (Role.MEMBER, [Role.GUEST], False, True),
        (Role.MEMBER, [Role.GUEST, Role.MEMBER], False, False),
        (Role.GUEST, [Role.GUEST], True, True),
        (Role.GUEST, [Role.MEMBER], False, False),
        (Role.MEMBER, [], False, False),
        (Role.OWNER, [], False, True),
    ],
)
def test_a_turn_is_stopped_by_who_asked_or_by_somebody_above(role, askers, is_only_asker, may):
    assert roles.speaks_for(role, askers, is_only_asker=is_only_asker) is may


def test_settings_that_cannot_be_read_leave_everybody_a_guest():
    config = settings.of(a_group(container_config={"people": {"a": "king"}}))
    assert role_of(PHONE, config=config) is Role.GUEST


def test_the_prompt_of_a_member_who_lacks_only_commands_names_them():
    line = roles.prompt_line(Role.MEMBER, RULES[Role.MEMBER])
    assert "For them you may not: give commands. The host" in line
    assert "command" not in roles.prompt_line(Role.GUEST, RULES[Role.GUEST])
