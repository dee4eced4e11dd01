"""The real Claude CLI as the container's side: what it sends must pass, what it reads must be enough."""

from __future__ import annotations

import asyncio
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.doubles.messages_api import Say, ScriptedMessagesApi
from tests.support.running_proxy import REAL_KEY, Proxied, proxied
from tests.support.until import DEADLINE_SECONDS


def bundled_cli() -> Path:
    spec = find_spec("claude_agent_sdk")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "_bundled" / "claude"


async def ask(served: Proxied, home: Path) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_API_KEY": served.token,
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    process = await asyncio.create_subprocess_exec(
        *(str(bundled_cli()), "-p", "hello"),
        env=environment,
        cwd=home,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        said, _ = await process.communicate()
    return said.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        (f"ANTHROPIC_API_KEY={REAL_KEY}", "x-api-key", REAL_KEY),
        (f"CLAUDE_CODE_OAUTH_TOKEN={REAL_KEY}", "authorization", f"Bearer {REAL_KEY}"),
    ],
)
async def test_the_cli_is_answered_through_the_proxy(
    tmp_path: Path, setting: str, name: str, value: str
) -> None:
    with ScriptedMessagesApi([Say("all is well")]) as api:
        async with proxied(tmp_path, settings=[setting]) as served:
            served.environment["ANTHROPIC_BASE_URL"] = api.url
            assert "all is well" in await ask(served, tmp_path)
    assert api.turns[0].headers[name] == value


async def test_the_cli_says_that_no_credential_is_configured(tmp_path: Path) -> None:
    async with proxied(tmp_path, settings=()) as served:
        assert "No model credential is configured" in await ask(served, tmp_path)
