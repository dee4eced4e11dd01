"""`andy models`: services are added, asked for what they can do, chosen and removed; no key is shown."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.cli.main import _run
from orchestrator.domain.errors import AndyError, SettingError
from orchestrator.groups import registration
from orchestrator.home.directory import Home
from orchestrator.proxies.name_lookups import NameLookups
from orchestrator.store.database import Database
from tests.doubles.faulty_upstream import Behave, FaultyUpstream, Received, answer, hang
from tests.doubles.messages_api import Say, ScriptedMessagesApi, UseTool

KEY = "sk-or-the-real-key-of-openrouter"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("ANDY_HOME", str(tmp_path))
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    home = Home(tmp_path)
    home.make()

    async def make() -> None:
        database = await Database.open(home.database)
        async with database.transaction() as tx:
            await registration.ensure_main(tx, now_ms=0)
        await database.close()

    asyncio.run(make())
    return home


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    _run(["models", "list", "--json"])
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_a_service_is_added_by_its_kind_and_its_key_is_only_named(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    (home.root / ".env").write_text(f"OPENROUTER_API_KEY={KEY}\n")

    _run(["models", "add", "local", "--kind", "llama.cpp", "--model", "qwen3", "--window", "32768"])
    _run(["models", "add", "openrouter", "--model", "qwen/qwen3-coder", "--price", "0.3,1.2"])
    rows = {str(row["name"]): row for row in listed(capsys)}

    assert rows["local"]["url"] == "http://127.0.0.1:8080"
    assert rows["local"]["price"] == {"input": 0, "output": 0}, "a machine of one's own takes no money"
    assert rows["openrouter"] | {"has_key": True, "key_env": "OPENROUTER_API_KEY"} == rows["openrouter"]
    _run(["models", "list"])
    assert KEY not in capsys.readouterr().out
    assert KEY.encode() not in home.database.read_bytes()


def test_a_service_is_not_added_while_the_file_of_its_key_cannot_be_read(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    (home.root / ".env").write_bytes(b"\xff")
    with pytest.raises(AndyError, match=r"\.env"):
        _run(["models", "add", "openrouter", "--model", "qwen/qwen3-coder", "--price", "0.3,1.2"])
    (home.root / ".env").unlink()
    assert listed(capsys) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["anthropic"], "is the one of .env"),
        (["far", "http://models.example.org", "--kind", "gateway"], "use https"),
        (["far", "https://me:secret@models.example.org", "--kind", "gateway"], "put the key into .env"),
        (["far", "file:///etc/passwd", "--kind", "gateway"], "is no URL of a service"),
        (["far", "https://models.example.org/v1?", "--kind", "gateway"], "is no URL of a service"),
        (["far", "https://models.example.org/v1#", "--kind", "gateway"], "is no URL of a service"),
        (["near", "--kind", "ollama", "--window", "4096"], "a first request needs 16,000"),
        (["near", "--kind", "ollama", "--window", str(10**12)], "more than 1,000,000,000 tokens"),
        (["near", "--kind", "ollama", "--key-env", "PATH"], "is no name of a key"),
        (["mine"], "Say what 'mine' is"),
        (["mine", "--kind", "gateway"], "Say where a gateway of your own is"),
        (["near", "--kind", "ollama", "--price", "cheap"], "is no price"),
        (["near", "--kind", "ollama", "--first-byte-seconds", "0"], "at least 1 second"),
        (["near", "--kind", "ollama", "--first-byte-seconds", str(10**12)], "at most 86,400 seconds"),
    ],
)
def test_what_cannot_be_a_service_is_refused_with_the_fix(home: Home, words: list[str], told: str) -> None:
    with pytest.raises(AndyError, match=told.replace(".", r"\.")):
        _run(["models", "add", *words])


def test_a_slip_in_the_name_of_a_service_asks_no_other_service(home: Home) -> None:
    _run(["models", "add", "local", "--kind", "ollama", "--model", "qwen3"])
    for slip in ("lokal/qwen3", "locale/qwen3", "antropic/claude"):
        with pytest.raises(AndyError, match=r"is it (local|anthropic)"):
            _run(["models", "use", slip])
    _run(["models", "use", "anthropic/lokal/qwen3"])
    _run(["models", "use", "anthropic/qwen/qwen3-coder"])


CHOOSERS = (
    ["models", "use", "MODEL"],
    ["models", "use", "MODEL", "--group", "main"],
    ["models", "fallback", "MODEL"],
    ["groups", "config", "main", "--set", '{"model": "MODEL"}'],
    ["groups", "config", "main", "--set", '{"models": {"tasks": "MODEL"}}'],
    ["groups", "register", "family", "--config", '{"model": "MODEL"}'],
)
UNKNOWN = ["foo/bar", "glm-4.6", "qwen/qwen3-coder", "foo/claude-opus-4-6"]


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize("address", ["", "https://api.anthropic.com/"])
def test_an_unknown_service_is_refused_in_one_line_that_names_the_fix(
    home: Home, monkeypatch: pytest.MonkeyPatch, unknown: str, address: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", address)
    for words in CHOOSERS:
        with pytest.raises(AndyError, match="'andy models list'") as refused:
            _run([word.replace("MODEL", unknown) for word in words])
        told = str(refused.value)
        assert told.startswith(
            (f"There is no service '{unknown.partition('/')[0]}': ", f"'{unknown}' is neither")
        )
        assert told.endswith(f"A model of that name at the service of .env is anthropic/{unknown}.")
        assert "\n" not in told


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_model_of_a_gateway_needs_no_service_before_it(home: Home, name: str) -> None:
    (home.root / ".env").write_text("ANTHROPIC_BASE_URL=https://gateway.example.org\n")
    for words in CHOOSERS:
        assert not _run([word.replace("MODEL", name) for word in words])
    _run(["models", "add", "local", "--kind", "ollama"])
    with pytest.raises(AndyError, match="There is no service 'lokal': is it local"):
        _run(["models", "use", "lokal/qwen3"])


@pytest.mark.parametrize(
    "claude", ["claude-opus-4-6", "sonnet", "opusplan", "haiku", "sonnet[1m]", "anthropic"]
)
def test_a_model_of_claude_needs_no_service_before_it(home: Home, claude: str) -> None:
    assert _run(["models", "use", claude]) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["local/m"], "All groups without a choice of their own use local/m from the next turn on."),
        (
            ["local/m", "--group", "main", "--for", "tasks"],
            "The group 'main' uses local/m for tasks from the",
        ),
        (["default"], "The choice of all groups is cleared from the next turn on."),
        (["default", "main"], "The choice of the group 'main' is cleared from the next turn on."),
    ],
)
def test_a_choice_is_confirmed_in_a_plain_sentence(
    home: Home, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    _run(["models", "add", "local", "--kind", "ollama"])
    _run(["models", "use", *words])
    assert told in capsys.readouterr().out


def test_a_service_is_asked_for_each_thing_and_what_it_can_is_kept(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedMessagesApi() as api:
        api.probe = Say("Hello!")
        _run(["models", "add", "local", api.url, "--kind", "ollama", "--model", "qwen3"])
        assert _run(["models", "test", "local"]) == 0
        plain = listed(capsys)[0]
        api.probe = UseTool("note__colour", {"colour": "red"})
        _run(["models", "test", "local"])
    asked = [one.body for one in api.probes]

    assert plain["abilities"] == ["counting", "images", "stream"], "this model has called no tool"
    assert "tools" in listed(capsys)[0]["abilities"]  # type: ignore[operator]
    assert {body["model"] for body in asked} == {"qwen3"}
    assert any(body.get("stream") for body in asked)
    assert all("x-api-key" not in one.headers and "authorization" not in one.headers for one in api.probes)


@pytest.mark.parametrize(
    ("behave", "told"),
    [
        (answer(200, b"<html>Log in</html>", content_type="text/html"), "no answer of the Messages API"),
        (
            answer(200, b'{"object":"chat.completion","choices":[]}', content_type="application/json"),
            "no answer of the Messages API",
        ),
        (answer(200, b"{}", content_type="application/json"), "no answer of the Messages API"),
        (answer(302, b"", location="http://127.0.0.1:1/"), "no answer of the Messages API"),
        (answer(401, b'{"error":{"message":"bad key"}}', content_type="application/json"), "bad key"),
        (answer(404, b"not here", content_type="text/plain"), "HTTP 404: no answer of the Messages API"),
    ],
)
def test_a_service_that_answers_otherwise_is_told_and_not_believed(
    home: Home, capsys: pytest.CaptureFixture[str], behave: object, told: str
) -> None:
    async def ask() -> int:
        async with FaultyUpstream(behave=behave) as upstream:  # type: ignore[arg-type]
            add = ["models", "add", "local", upstream.url, "--kind", "gateway", "--model", "m"]
            await asyncio.to_thread(_run, add)
            return await asyncio.to_thread(_run, ["models", "test", "local"])

    assert asyncio.run(ask()) == 1
    assert told in capsys.readouterr().out
    assert listed(capsys)[0]["tested_ms"] is None


LLAMA = ("llama.cpp", "/props", {"default_generation_settings": {"n_ctx": 4096}})
OLLAMA = (
    "ollama",
    "/api/ps",
    {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 4096}]},
)
LM_STUDIO = (
    "lmstudio",
    "/api/v0/models",
    {"data": [{"id": "m", "loaded_context_length": 4096, "max_context_length": 131072}]},
)
VLLM = (
    "vllm",
    "/v1/models",
    {"data": [{"id": "other", "max_model_len": 9}, {"id": "m", "max_model_len": 4096}]},
)
OPENROUTER = ("gateway", "/v1/models", {"data": [{"id": "m", "context_length": 4096}]})


def with_models(path: str, document: object, *, streams: bool = True) -> Behave:
    """Answer as a service does that says how large its window is."""
    message = b'{"type":"message","content":[{"type":"text","text":"hi"}]}'
    events = b"".join(
        b'event: %s\ndata: {"type":"%s"}\n\n' % (name, name)
        for name in (b"message_start", b"content_block_delta", b"message_stop")
    )

    async def behave(received: Received, *rest: object) -> None:
        if received.target == path:
            made = answer(200, json.dumps(document).encode(), content_type="application/json")
        elif streams and b'"stream": true' in received.body:
            made = answer(200, events, content_type="text/event-stream")
        else:
            made = answer(200, message, content_type="application/json")
        await made(received, *rest)  # type: ignore[arg-type]

    return behave


def add_and_test(behave: Behave, kind: str, *more: str) -> int:
    """Add a service that behaves like this, and ask it what it can."""

    async def ask() -> int:
        async with FaultyUpstream(behave=behave) as upstream:
            add = ["models", "add", "local", upstream.url, "--kind", kind, "--model", "m", *more]
            await asyncio.to_thread(_run, add)
            return await asyncio.to_thread(_run, ["models", "test", "local"])

    return asyncio.run(ask())


def again(behave: Behave, home: Home) -> int:
    """Ask the service once more what it can, as if it were started anew at the same address."""

    async def ask() -> int:
        async with FaultyUpstream(behave=behave) as upstream:
            database = await Database.open(home.database)
            async with database.transaction() as tx:
                await tx.execute("UPDATE model_services SET url = ?", (upstream.url,))
            await database.close()
            return await asyncio.to_thread(_run, ["models", "test", "local"])

    return asyncio.run(ask())


@pytest.mark.parametrize(("kind", "path", "document"), [LLAMA, OLLAMA, LM_STUDIO, VLLM, OPENROUTER])
def test_a_window_that_is_too_small_is_seen_and_its_service_cannot_be_chosen(
    home: Home, capsys: pytest.CaptureFixture[str], kind: str, path: str, document: object
) -> None:
    assert add_and_test(with_models(path, document), kind, "--window", "32768") == 0
    assert "4,096 tokens, and a first request needs 16,000" in capsys.readouterr().out
    assert listed(capsys)[0]["window"] == 4096
    with pytest.raises(AndyError, match=r"takes 4,096 tokens, and a first request needs 16,000"):
        _run(["models", "use", "local/m"])
    larger = json.loads(json.dumps(document).replace("4096", "65536"))
    capsys.readouterr()
    assert again(with_models(path, larger), home) == 0
    assert "65,536 tokens" in capsys.readouterr().out
    _run(["models", "use", "local/m"])


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"data": "m"},
        {"data": [None, {"id": "other", "max_model_len": 9000}]},
        {"data": [{"id": "m", "max_model_len": "many", "context_length": True, "n_ctx": -1}]},
    ],
)
def test_a_window_that_no_service_says_stays_as_it_was_given(
    home: Home, capsys: pytest.CaptureFixture[str], document: object
) -> None:
    add_and_test(with_models("/v1/models", document), "gateway", "--window", "32768")
    assert "it does not say" in capsys.readouterr().out
    assert listed(capsys)[0]["window"] == 32768
    _run(["models", "use", "local/m"])


def test_a_window_that_no_model_has_counts_as_not_said(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    # What tokenizers of Hugging Face report where they know no size.
    document = {"data": [{"id": "m", "max_model_len": int(1e30)}]}
    assert add_and_test(with_models("/v1/models", document), "gateway") == 0
    assert "✗ window    it does not say" in capsys.readouterr().out
    assert listed(capsys)[0]["window"] is None


def test_a_service_that_gives_no_stream_cannot_be_chosen(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    add_and_test(with_models("/v1/models", {}, streams=False), "gateway")
    assert "Andy's agent needs it" in capsys.readouterr().out
    with pytest.raises(AndyError, match="did not stream its answer"):
        _run(["models", "use", "local"])


def test_an_answer_that_was_cut_after_its_call_of_a_tool_is_told_as_a_call(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    called = (
        b'{"type":"message","stop_reason":"max_tokens","content":[{"type":"tool_use","name":"note__colour"}]}'
    )
    add_and_test(answer(200, called, content_type="application/json"), "gateway")
    assert "it called the tool" in capsys.readouterr().out


def test_a_service_that_a_setting_names_is_not_removed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(["models", "add", "local", "--kind", "ollama", "--model", "qwen3"])
    monkeypatch.setenv("ANDY_MODEL", "local/qwen3")
    with pytest.raises(AndyError, match="is still chosen by the setting ANDY_MODEL"):
        _run(["models", "remove", "local"])
    monkeypatch.delenv("ANDY_MODEL")
    _run(["models", "remove", "local"])


def test_a_service_of_a_group_whose_settings_cannot_be_read_is_not_removed(home: Home) -> None:
    _run(["models", "add", "local", "--kind", "ollama", "--model", "qwen3"])
    _run(["models", "use", "local/qwen3", "--group", "main"])
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute(
            "UPDATE registered_groups SET container_config = json_set(container_config, '$.later', 1)"
        )
    with pytest.raises(AndyError, match="is still chosen by the group main"):
        _run(["models", "remove", "local"])


def test_an_undo_does_not_bring_back_a_model_whose_service_is_gone(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(["models", "add", "local", "--kind", "ollama", "--model", "qwen3"])
    _run(["models", "use", "local/qwen3", "--group", "main"])
    _run(["models", "use", "default", "--group", "main"])
    _run(["models", "remove", "local"])
    with pytest.raises(AndyError, match="There is no service 'local'"):
        _run(["groups", "undo", "main", "--yes"])
    capsys.readouterr()
    _run(["groups", "config", "main", "--json"])
    assert json.loads(capsys.readouterr().out) == {}


def test_services_are_listed_with_settings_that_cannot_be_read(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(["models", "add", "local", "--kind", "ollama", "--model", "qwen3"])
    (home.root / ".env").write_text("ANDY_PORT=x\n")
    monkeypatch.setenv("ANDY_MODEL", "local/qwen3")
    capsys.readouterr()
    _run(["models", "list", "--json"])
    shown = capsys.readouterr()
    assert json.loads(shown.out)[0]["used_for"] == ["the setting ANDY_MODEL"]
    assert "ANDY_PORT" in shown.err


def test_keys_that_cannot_be_read_are_one_error_with_the_fix(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(["models", "add", "openrouter", "--model", "qwen/qwen3-coder"])
    (home.root / ".env").write_bytes(b"\xff")
    capsys.readouterr()
    with pytest.raises(SettingError, match="Correct it as UTF-8 text"):
        _run(["models", "list"])
    assert capsys.readouterr() == ("", ""), "nothing is said to be listed without the settings"


def test_a_name_of_the_internet_that_leads_home_is_not_asked(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> list[object]:
        async with FaultyUpstream(behave=hang) as upstream:

            async def astray(self, host, port, *, share):  # type: ignore[no-untyped-def]
                return ["127.0.0.1"]

            monkeypatch.setattr(NameLookups, "look_up", astray)
            url = f"https://models.example.org:{upstream.url.rpartition(':')[2]}"
            add = ["models", "add", "far", url, "--kind", "gateway", "--model", "m"]
            await asyncio.to_thread(_run, add)
            assert await asyncio.to_thread(_run, ["models", "test", "far"]) == 1
            return list(upstream.received)

    assert asyncio.run(ask()) == []
    printed = capsys.readouterr()
    assert "leads to a private address" in printed.out
    assert "'andy models add far URL …' adds it again" in printed.err


def test_a_choice_names_a_service_that_is_there_and_what_is_chosen_stays(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(["models", "add", "local", "--kind", "ollama"])

    with pytest.raises(AndyError, match="has no model of its own"):
        _run(["models", "use", "local"])
    _run(["models", "use", "local/qwen3", "--group", "main", "--for", "tasks"])
    assert listed(capsys)[0]["used_for"] == ["the group main for tasks"]
    with pytest.raises(AndyError, match="still chosen by the group main for tasks:"):
        _run(["models", "remove", "local"])
    _run(["models", "use", "default", "--group", "main", "--for", "tasks"])
    _run(["models", "fallback", "local/qwen3"])
    with pytest.raises(AndyError, match="still chosen by the choice for fallback"):
        _run(["models", "remove", "local"])
    _run(["models", "fallback"])
    _run(["models", "remove", "local"])
