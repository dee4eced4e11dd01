"""Texts made to choke the redactor: what is quadratic in them does not end within the timeout."""

from __future__ import annotations

import pytest

from orchestrator.base.redaction import redact

LENGTH = 150_000


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "piece",
    [
        *("-eyJ", "eyJ", "-eyJ-aaaaaaaaaa", "sk-", "xoxb-", "AIza-", "AKIA", "ghp_", "-", " ", "a"),
        *('password="', "password='", "password : ", 'token\\"', "token: ", "secret=", "api_key : "),
        *("bearer ", "bearer a", "Bearer aaaaaaaa", "authorization:", "://a:", "://"),
        *("-----BEGIN A-----", "-----BEGIN A", "-----BEGIN A-----x-----END"),
    ],
)
def test_c_21_time_grows_with_the_length_and_no_faster(piece: str):
    bomb = (piece * (LENGTH // len(piece) + 1))[:LENGTH]

    redacted = redact(f"password=hunter2 {bomb}")

    assert "hunter2" not in redacted
    assert len(redacted) <= 20 * LENGTH
