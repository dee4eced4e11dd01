"""Who may wake an agent."""

from __future__ import annotations

import pytest

from orchestrator.domain.values import ChatJid
from orchestrator.groups.owner import OwnerRules
from orchestrator.inbound.senders import SenderRules, SenderVerdict, judge
from tests.support.store_harness import a_message

ANN, BOB = "1@s", "2@s"
FILE = {
    "default": {"allow": [ANN]},
    "chats": {
        "x@g.us": {"allow": [BOB], "mode": "drop"},
        "open@g.us": {"allow": "*"},
        "shut@g.us": {"allow": []},
    },
}


@pytest.mark.parametrize(
    ("chat", "sender", "verdict"),
    [
        ("other@g.us", ANN, SenderVerdict.ALLOWED),
        ("other@g.us", BOB, SenderVerdict.NO_TRIGGER),
        ("other@g.us", "11@s", SenderVerdict.NO_TRIGGER),
        ("x@g.us", BOB, SenderVerdict.ALLOWED),
        ("x@g.us", ANN, SenderVerdict.DROPPED),
        ("open@g.us", BOB, SenderVerdict.ALLOWED),
        ("shut@g.us", ANN, SenderVerdict.NO_TRIGGER),
    ],
)
def test_a_sender_is_judged_by_the_rule_of_the_chat(chat, sender, verdict):
    found = OwnerRules(rules=SenderRules.model_validate(FILE))
    message = a_message("hi", chat_jid=ChatJid(chat), sender=sender)
    assert judge(message, found) is verdict
    own = a_message("hi", chat_jid=ChatJid(chat), sender=sender, is_from_me=True)
    assert judge(own, found) is SenderVerdict.ALLOWED


def test_without_a_file_everybody_may_and_with_a_broken_one_only_the_owner():
    assert judge(a_message("hi"), OwnerRules()) is SenderVerdict.ALLOWED
    broken = OwnerRules(trouble="no JSON")
    assert judge(a_message("hi"), broken) is SenderVerdict.NO_TRIGGER
    assert judge(a_message("hi", is_from_me=True), broken) is SenderVerdict.ALLOWED


@pytest.mark.parametrize(
    "fields",
    [
        {"default": {"allow": "everyone"}},
        {"default": {"mode": "drop"}},
        {"default": {"allow": "*", "mode": "mute"}},
        {"chats": {"x": {"allow": [1]}}},
        {"chat": {}},
        {"logDenied": "no"},
    ],
)
def test_a_file_with_a_slip_is_refused_rather_than_read_half(fields):
    with pytest.raises(ValueError, match="validation error"):
        SenderRules.model_validate(fields)
