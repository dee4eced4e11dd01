"""The policies of all pages by the rules of csp-evaluator: no way for a script that is not ours."""

from __future__ import annotations

import re

import pytest

from orchestrator.web.api import pairing
from orchestrator.web.console.page import policy

POLICIES = {
    "a page": policy("r4nd0m-N0nce_of16bytes"),
    "any other answer": policy(),
    "pairing": pairing.POLICY,
}
KNOWN = {
    "default-src", "script-src", "style-src", "connect-src", "img-src", "form-action", "frame-ancestors",
    "base-uri", "manifest-src", "worker-src",
}  # fmt: skip


def directives(text: str) -> dict[str, list[str]]:
    found = [one.split() for one in text.split(";")]
    assert len({one[0] for one in found}) == len(found), "the second of a directive counts for nothing"
    return {name: values for name, *values in found}


@pytest.mark.parametrize("text", POLICIES.values(), ids=POLICIES.keys())
def test_a_policy_leaves_no_way_for_a_script_of_others(text: str) -> None:
    found = directives(text)

    assert found.keys() <= KNOWN, "a name that no browser knows counts for nothing"
    assert found["default-src"] == ["'none'"], "what is not named, such as objects, is not loaded"
    assert found["base-uri"] == ["'none'"]
    assert found["frame-ancestors"] == ["'none'"]
    assert found["form-action"] == ["'self'"]
    for name, values in found.items():
        for value in values:
            # No scheme, no wildcard, no host whose files others choose, nothing inline without its number.
            assert re.fullmatch(r"'(none|self|nonce-[\w+/=-]{16,}|sha256-[\w+/=]{44})'", value), (name, value)


def test_the_style_of_the_page_that_pairs_is_the_one_that_its_policy_names() -> None:
    shown = pairing.page({"state": "failed", "qr": "", "letters": "", "text": "x"})

    assert f"<style>{pairing.STYLE}</style>" in shown
    assert "style=" not in shown.replace("<style>", "")
    assert "<script" not in shown
    assert pairing.PRIVATE["Content-Security-Policy"] == pairing.POLICY
