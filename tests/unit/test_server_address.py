"""The address of a messenger's server, as a person types it."""

from __future__ import annotations

import pytest

from orchestrator.channels.server_address import checked_address
from orchestrator.domain.errors import BadRequest


@pytest.mark.parametrize("text", ["https://[", "https://[::1", "matrix.org:99999", "matrix.org:x", "//", ""])
def test_what_is_no_address_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(BadRequest, match="is no address of a server"):
        checked_address(text, credential_kind="password")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("matrix.org", "https://matrix.org"),
        ("http://[::1]:8008/", "http://[::1]:8008"),
        ("https://a.example:8448", "https://a.example:8448"),
    ],
)
def test_an_address_is_taken_without_its_slash(text: str, address: str) -> None:
    assert checked_address(text, credential_kind="password") == address
