"""MCP servers of the owner's, called by the real CLI from a container that never has a secret of theirs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from orchestrator.proxies.mcp_logins import FRESH_MS
from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool, tool_names, tool_results
from tests.processes import mcp_program
from tests.processes.andy import AndyProcess, until
from tests.processes.mcp_login_server import LoginServer, browse
from tests.processes.mcp_server import NotesServer
from tests.support.skips import only_in_soak

pytestmark = [pytest.mark.timeout(900), pytest.mark.docker]
SECRET = "notes-secret-0123456789abcdef"


@pytest.fixture(scope="module")
def api() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi() as api:
        yield api


@pytest.fixture(scope="module")
def notes() -> Iterator[NotesServer]:
    with NotesServer() as server:
        yield server


@pytest.fixture(scope="module")
def andy(
    tmp_path_factory: pytest.TempPathFactory, agent_image: str, api: ScriptedMessagesApi
) -> Iterator[AndyProcess]:
    home = tmp_path_factory.mktemp("mcp") / "home"
    home.mkdir()
    (home / ".env").write_text(f"NOTES_TOKEN={SECRET}\n")
    environment = {"ANTHROPIC_API_KEY": "sk-ant-api03-key", "ANTHROPIC_BASE_URL": api.url}
    with AndyProcess(home, runtime="docker", agent="auto", environment=environment) as andy:
        yield andy


def test_a_server_sees_the_secret_and_a_root_shell_in_the_container_does_not(
    andy: AndyProcess, api: ScriptedMessagesApi, notes: NotesServer
) -> None:
    done(andy, "mcp", "add", "notes", notes.url, "--secret-env", "NOTES_TOKEN")
    done(andy, "groups", "register", "family")
    done(andy, "mcp", "add", "others", notes.url, "--group", "family")
    api.then(
        UseTool("mcp__notes__write_note", {"text": "buy milk"}),
        UseTool("mcp__notes__tell_secret", {}),
        UseTool("Bash", {"command": CALL_BY_HAND.format(name="others")}),
        UseTool("Bash", {"command": CALL_BY_HAND.format(name="unheard-of")}),
        Say("Noted."),
    )
    assert andy.say("note that I need milk")["reply"] == "Noted."
    first, wrote, leaked, others, unheard = api.turns
    assert "mcp__others__write_note" not in tool_names(first)
    assert notes.written == ["buy milk"]
    assert "kept: buy milk" in json.dumps(tool_results(wrote))
    assert set(notes.proofs) == {f"Bearer {SECRET}"}, "each request, and no other proof"
    assert SECRET not in json.dumps([request.body for request in api.turns]), "where a server quotes it, too"
    assert "you showed me Bearer [secret]" in json.dumps(tool_results(leaked))
    for refused in (others, unheard):
        assert "403 permission_error" in json.dumps(tool_results(refused))

    (container,) = containers(andy)
    looked = seen_by_root(container, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'")
    assert "/mcp/notes" in looked, "the look into the processes has worked"
    search = "grep -rlsF --exclude-dir=proc --exclude-dir=sys"
    assert SECRET not in looked
    assert seen_by_root(container, f"{search} {SECRET} / ; true") == ""

    until(lambda: len(calls_of(andy)) >= 2, what="the calls are written down")
    assert {(row["group"], row["detail"]["server"], row["detail"]["tool"]) for row in calls_of(andy)} == {
        ("main", "notes", "write_note"),
        ("main", "notes", "tell_secret"),
    }
    assert "buy milk" not in json.dumps(calls_of(andy))
    (_, listed) = sorted(andy.listed("mcp", "list"), key=lambda row: row["name"], reverse=True)
    assert (listed["name"], listed["groups"], listed["has_secret"]) == ("notes", ["main"], True)
    assert SECRET not in andy.cli("mcp", "list").stdout + andy.log.read_text()

    done(andy, "mcp", "remove", "notes")
    until(lambda: not containers(andy), what="the container that was told of the server has ended")
    api.then(UseTool("Bash", {"command": CALL_BY_HAND.format(name="notes")}), Say("Gone."))
    andy.say("and now?")
    assert "403 permission_error" in json.dumps(tool_results(api.turns[-1]))


@only_in_soak
def test_a_program_of_the_owners_runs_in_the_container_from_a_folder_that_is_read_only_there(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    folder = andy.home / "mcp" / "dice"
    folder.mkdir(parents=True)
    shutil.copyfile(mcp_program.__file__, folder / "server.py")
    done(andy, "groups", "register", "games")
    done(andy, "mcp", "add", "dice", "--command", "python3 server.py", "--group", "games")
    (andy.home / "groups" / "games" / ".mcp.json").write_text(PLANTED)
    before = len(api.turns)
    api.then(
        UseTool("mcp__dice__roll", {"sides": 6}),
        UseTool("mcp__dice__write_beside", {}),
        UseTool("Bash", {"command": CHANGE_IT}),
        UseTool("Bash", {"command": CALL_BY_HAND.format(name="dice")}),
        Say("A six."),
    )
    assert andy.say("@Andy roll", group="games")["reply"] == "A six."
    _, rolled, beside, changed, by_proxy = (json.dumps(tool_results(one)) for one in api.turns[before:])
    assert "rolled 6 of 6 in /workspace/mcp/dice" in rolled
    assert "Read-only file system" in beside
    assert changed.count("Read-only file system") == 2
    assert ".mcp.json" in changed
    assert "cannot access 'started'" in changed, "what an agent writes into its own folder starts nothing"
    assert "403 permission_error" in by_proxy
    assert (folder / "server.py").read_text() == Path(mcp_program.__file__).read_text()

    (listed,) = [row for row in andy.listed("mcp", "list") if row["name"] == "dice"]
    assert (listed["command"], listed["groups"], listed["has_folder"]) == (
        ["python3", "server.py"],
        ["games"],
        True,
    )
    assert [row["detail"]["command"] for row in andy.listed("audit") if row["kind"] == "mcp.added"][-1] == [
        "python3",
        "server.py",
    ]

    before = len(api.turns)
    api.then(Say("I have no dice."))
    andy.say("roll a die")
    assert not [name for name in tool_names(api.turns[before]) if name.startswith("mcp__dice")]
    assert "mcp__dice__" not in json.dumps(api.turns[before].body), "main may not use it"


@only_in_soak
def test_an_agent_calls_a_server_with_the_owners_login_which_is_renewed_outside_of_its_container(
    andy: AndyProcess, api: ScriptedMessagesApi
) -> None:
    with LoginServer() as diary:
        done(andy, "groups", "register", "writers")
        done(andy, "mcp", "add", "diary", diary.url, "--group", "writers")
        log_in(andy, "diary")
        before = len(api.turns)
        api.then(UseTool("mcp__diary__write_note", {"text": "one"}), Say("Written."))
        assert andy.say("@Andy write", group="writers")["reply"] == "Written."
        diary.accounts.tokens.clear()
        age(andy)
        api.then(
            UseTool("mcp__diary__write_note", {"text": "two"}),
            UseTool("mcp__diary__tell_secret", {}),
            Say("Written."),
        )
        assert andy.say("@Andy write again", group="writers")["reply"] == "Written."
        assert (diary.written, diary.accounts.renewed) == (["one", "two"], 1)
        (token,) = diary.accounts.tokens
        (refresh,) = diary.accounts.refreshes
        assert diary.proofs[-1] == f"Bearer {token}"

        said = json.dumps([request.body for request in api.turns[before:]])
        assert "you showed me Bearer [secret]" in said
        seen = said + andy.log.read_text() + andy.cli("mcp", "list").stdout + andy.cli("audit").stdout
        for container in containers(andy):
            seen += seen_by_root(container, "cat /proc/[0-9]*/environ | tr '\\0' '\\n'; env")
            seen += seen_by_root(
                container, f"grep -rlsF --exclude-dir=proc --exclude-dir=sys {token} / ; true"
            )
        assert "ANTHROPIC_BASE_URL" in seen, "the look into the containers has worked"
        assert token not in seen
        assert refresh not in seen

        diary.accounts.end_all()
        age(andy)
        api.then(UseTool("mcp__diary__write_note", {"text": "three"}), Say("I cannot."))
        assert andy.say("@Andy write more", group="writers")["reply"] == "I cannot."
        assert "andy mcp login diary" in json.dumps(tool_results(api.turns[-1]))
        assert diary.written == ["one", "two"]
        texts = [row["text"] for row in andy.rows("SELECT text FROM outbox")]
        assert len([text for text in texts if "andy mcp login diary" in text]) == 1
        (listed,) = [row for row in andy.listed("mcp", "list") if row["name"] == "diary"]
        assert listed["is_logged_in"] is False


def log_in(andy: AndyProcess, name: str) -> None:
    """Be the owner with a browser of this machine."""
    command = [sys.executable, "-m", "orchestrator", "mcp", "login", name]
    with subprocess.Popen(command, env=andy.environment, stdout=subprocess.PIPE, text=True) as login:
        assert login.stdout is not None
        address = next(line.strip() for line in login.stdout if "code_challenge" in line)
        with httpx.Client(trust_env=False) as browser:
            browser.get(browse(address))
        assert f"Logged in to '{name}'" in login.stdout.read()


def age(andy: AndyProcess) -> None:
    """Have the token be no new one: of that, a refusal would not be taken for its end."""
    path = andy.home / "data" / "mcp-logins" / "diary.json"
    login = json.loads(path.read_text())
    path.write_text(json.dumps({**login, "obtained_ms": login["obtained_ms"] - FRESH_MS}))


CHANGE_IT = """
exec 2>&1
echo evil > /workspace/mcp/dice/server.py; touch /workspace/mcp/mine
ls .mcp.json started
"""
PLANTED = '{"mcpServers": {"mine": {"command": "touch", "args": ["/workspace/group/started"]}}}'
"""What an agent may write into its own folder, to have a server there."""
CALL_BY_HAND = """
curl -s -w ' %{{http_code}} ' -H "authorization: Bearer $ANTHROPIC_API_KEY" \\
    -H 'content-type: application/json' -d '{{"jsonrpc":"2.0","id":1,"method":"ping"}}' \\
    $ANTHROPIC_BASE_URL/mcp/{name} | sed -E 's/.*"type": "([a-z_]+)", "message.* ([0-9]+) $/\\2 \\1/'
"""


def done(andy: AndyProcess, *words: str) -> None:
    result = andy.cli(*words)
    assert result.returncode == 0, result.stderr


def calls_of(andy: AndyProcess) -> list[dict]:
    rows = [row for row in andy.listed("audit") if row["kind"] == "mcp.request"]
    return [row for row in rows if row["detail"].get("method") == "tools/call"]


def containers(andy: AndyProcess) -> list[str]:
    listed = ["docker", "ps", "-q", "--filter", f"label=andy.install={andy.install}"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()


def seen_by_root(container: str, script: str) -> str:
    """What root sees inside, and the agent's user: without capabilities, each reads what the other cannot."""
    shell = ["docker", "exec", "--user"]
    looks = [[*shell, user, container, "sh", "-c", script] for user in ("0", "1000")]
    return "".join(subprocess.run(look, capture_output=True, text=True, check=False).stdout for look in looks)
