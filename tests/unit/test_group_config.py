"""What may be set for a group is checked by name and by bounds."""

from __future__ import annotations

import pytest

from orchestrator.domain.values import Role
from orchestrator.groups import settings
from orchestrator.groups.settings import ConfigRefused, GroupConfig, MountRequest
from tests.support.store_harness import a_group


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"memroy_mb": 512}, "'memroy_mb' is no key of a group's configuration. Known: agent, ask, cpus"),
        ({"mounts": [{"path": "/a", "rw": True}]}, "'mounts.0.rw' is no key"),
        ({"mounts": [{"path": "/a", "rw": True}]}, "Known: name, path, writable"),
        ({"roles": {"member": {"foo": 1}}}, "'roles.member.foo' is no key"),
        ({"roles": {"member": {"foo": 1}}}, "Known: call, history, mcp, memory, network, schedule, spend."),
        (
            {"roles.member": {}},
            "'roles.member' is no key of a group's configuration. Known: agent, ask, cpus",
        ),
        ({"memory_mb": 1}, "memory_mb: Input should be greater than or equal to 256 (it is 1)"),
        ({"cpus": 0}, "cpus:"),
        ({"timeout_ms": 90_000_000}, "timeout_ms:"),
        ({"agent": "robot"}, "agent:"),
        ({"model": ""}, "model:"),
        ({"mounts": [{"path": "/a", "writable": "yes"}]}, "mounts.0.writable:"),
        ({"mounts": [{"path": "/a"}] * 21}, "mounts:"),
        ({"is_main": True}, "'is_main' is no key"),
        ({"ask": ["bash"]}, "ask.0: Value error, write egress, mcp:SERVER"),
        ({"ask": ["egress"], "egress": "open"}, "egress is open, so there is nothing to ask about"),
    ],
)
def test_what_cannot_be_used_is_named(fields, told):
    with pytest.raises(ConfigRefused) as refused:
        settings.checked(fields)
    assert told in str(refused.value)


def test_what_is_set_is_stored_and_nothing_else():
    given = {"memory_mb": 512, "cpus": 0.5, "mounts": [{"path": "~/photos"}]}
    assert settings.checked(given).to_fields() == given
    assert GroupConfig().to_fields() == {}


def test_a_change_keeps_the_rest_and_null_takes_a_key_away():
    group = a_group(container_config={"memory_mb": 512, "model": "small"})
    assert settings.merged(group, {"model": None, "cpus": 1}) == {"memory_mb": 512, "cpus": 1.0}


def test_an_unknown_key_is_refused_also_where_it_is_taken_away():
    with pytest.raises(ConfigRefused, match="'colour' is no key"):
        settings.merged(a_group(), {"colour": None})


def test_a_stored_key_that_is_not_known_can_be_taken_away():
    group = a_group(container_config={"old_key": 1, "memory_mb": 512})
    assert settings.merged(group, {"old_key": None}) == {"memory_mb": 512}
    with pytest.raises(ConfigRefused, match="'old_key' is no key"):
        settings.merged(group, {"cpus": 1})


def test_a_stored_configuration_that_cannot_be_read_gives_the_group_nothing():
    group = a_group(container_config={"mounts": [{"path": "/"}], "old_key": 1})
    assert settings.of(group) == GroupConfig(web_search=False, ask=("mcp:*",), people={"*": Role.GUEST})
    readable = a_group(container_config={"mounts": [{"path": "/a", "writable": True}]})
    assert settings.of(readable).mounts == (MountRequest(path="/a", writable=True),)


ZONED = "[fe80::1%eth0]:443"


@pytest.mark.parametrize(
    ("stored", "loaded"),
    [
        (["example.com:443", ZONED], {"allowlist": ["example.com:443"]}),
        ([ZONED], "none"),
    ],
)
def test_a_stored_address_with_a_zone_is_left_out_and_the_other_settings_stay(stored, loaded):
    group = a_group(container_config={"memory_mb": 512, "egress": {"allowlist": stored}})
    wanted = settings.checked({"memory_mb": 512, "egress": loaded})
    assert settings.of(group) == wanted
    assert settings.to_change(group) == wanted
    assert settings.merged(group, {"cpus": 1}) == wanted.to_fields() | {"cpus": 1.0}


def test_a_new_address_with_a_zone_is_refused():
    with pytest.raises(ConfigRefused, match="without a zone"):
        settings.merged(a_group(), {"egress": {"allowlist": [ZONED]}})


@pytest.mark.parametrize("egress", [{"allowlist": 1}, {"allowlist": [1, "%"]}, {"list": []}, 1])
def test_a_stored_list_of_another_form_gives_the_group_nothing(egress):
    assert settings.of(a_group(container_config={"egress": egress})).ask == ("mcp:*",)


def test_a_rule_names_what_the_owner_is_asked_before():
    config = settings.checked({"ask": ["egress", "mcp:mail/send", "mcp:bank"]})
    assert config.asks_egress
    assert config.asks_mcp("mail", "send")
    assert not config.asks_mcp("mail", "read")
    assert config.asks_mcp("mail"), "some tool of it"
    assert config.asks_mcp("bank", "anything")
    assert not config.asks_mcp("ban")
    assert not GroupConfig().asks_egress
    assert not GroupConfig().asks_mcp("mail", "send")
    assert settings.checked({"ask": ["mcp:*"]}).asks_mcp("whichever", "tool")


@pytest.mark.parametrize(
    "rule", ["mcp:mail/s*", "mcp:mail/a,b", "mcp:mail/*", "mcp:mail/안녕", "mcp:mail/" + "a" * 129]
)
def test_a_rule_for_a_name_that_no_tool_can_have_is_refused_with_the_fix(rule: str) -> None:
    with pytest.raises(ConfigRefused, match=r"write egress, .*mcp:SERVER/TOOL.*name of a tool is whole"):
        settings.checked({"ask": [rule]})
    assert settings.checked({"ask": ["mcp:mail/Get.one_of-them"]}).asks_mcp("mail", "Get.one_of-them")
