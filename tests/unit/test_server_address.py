"""The address of a messenger's server is checked before a secret is sent there."""

from __future__ import annotations

import pytest

from orchestrator.channels.server_address import checked_address
from orchestrator.domain.errors import BadRequest


@pytest.mark.parametrize(
    ("typed", "address"),
    [
        ("matrix.org", "https://matrix.org"),
        (" https://matrix.org/ \n", "https://matrix.org"),
        ("https://matrix.example:8448/path/", "https://matrix.example:8448/path"),
        ("http://[::1]:8008", "http://[::1]:8008"),
        ("https://münchen.example.", "https://münchen.example."),
    ],
)
def test_an_address_gets_its_scheme_and_loses_what_is_around_it(typed, address):
    assert checked_address(typed, credential_kind="password") == address


@pytest.mark.parametrize(
    "typed",
    [
        "//[",
        "https://[",
        "https://[::1",
        "https://℀.example",
        "matrix.org:port",
        "matrix.org:99999",
        "https://matrix..org",
        f"https://{'a' * 64}.example",
        "https://me@matrix.org",
        "https://:secret@matrix.org",
        "https://matrix.org#room",
        "https://exa mple.org",
        "https://exa\nmple.org",
        "https://matrix.org/a path",
        'https://exa"mple.org',
        "",
    ],
)
def test_what_is_no_address_is_refused_with_a_sentence(typed):
    with pytest.raises(BadRequest, match="is no address of a server"):
        checked_address(typed, credential_kind="password")
