"""A turn asks the service that is chosen for it: which one, with what request, and what that costs."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from orchestrator.domain.model_services import (
    Ability,
    ModelChoice,
    ModelService,
    ServicePrice,
    WorkKind,
    is_near,
    read_choice,
)
from orchestrator.domain.values import TurnKind, TurnState
from orchestrator.home.settings import Settings
from orchestrator.proxies.model.adaptation import UNSEEN
from orchestrator.proxies.model.routing import is_cheap_enough
from orchestrator.proxies.run_tokens import new_token, token_hash
from orchestrator.store.money import usage
from tests.doubles.messages_api import Say, ScriptedMessagesApi
from tests.support.command_dispatchers import dispatcher_of
from tests.support.model_services_harness import KEY, ServicesHarness, said, several_services
from tests.support.store_harness import StoreHarness
from tests.support.until import DEADLINE_SECONDS

PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
KINDS = (TurnKind.CHAT, TurnKind.TASK, TurnKind.WORKER)


@pytest.fixture
def first() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi(default=Say("from the first")) as api:
        yield api


@pytest.fixture
def local() -> Iterator[ScriptedMessagesApi]:
    with ScriptedMessagesApi(default=Say("from the local one")) as api:
        yield api


@pytest.fixture
async def harness(
    store_harness: StoreHarness,
    database_path: Path,
    tmp_path: Path,
    first: ScriptedMessagesApi,
    local: ScriptedMessagesApi,
) -> AsyncIterator[ServicesHarness]:
    settings = Settings(tz="Asia/Seoul", andy_model="claude-sonnet-4-6")
    async with several_services(
        store_harness, database_path, tmp_path, url=first.url, settings=settings
    ) as made:
        await made.add("local", local.url, window=32_768)
        yield made


async def answers(harness: ServicesHarness, kind: TurnKind = TurnKind.CHAT) -> str:
    turn = await harness.attempt(await harness.asked(kind))
    assert turn.state is TurnState.ANSWERED
    return harness.attempts[-1].text


@pytest.mark.parametrize(
    ("host", "is_near_host"),
    [
        *(("localhost", True), ("nas", True), ("nas.lan", True), ("10.0.0.1", True), ("[::1]", True)),
        *(("api.example", False), ("8.8.8.8", False), ("2606:4700::1111", False)),
        # Resolvers read a number as an IPv4 address.
        *(("134744072", False), ("0x08080808", False), ("2130706433", True), ("127.1", True)),
    ],
)
def test_what_is_in_the_owners_network_is_told_by_its_name_or_address(
    host: str, *, is_near_host: bool
) -> None:
    assert is_near(host) is is_near_host


@pytest.mark.parametrize(
    ("text", "service", "model"),
    [
        (None, "anthropic", None),
        ("claude-opus-4-6", "anthropic", "claude-opus-4-6"),
        ("local/qwen3", "local", "qwen3"),
        ("local", "local", "own"),
        ("anthropic/claude-haiku-4-5", "anthropic", "claude-haiku-4-5"),
        ("openai/gpt", "anthropic", "openai/gpt"),
        ("router/qwen/qwen3-coder", "router", "qwen/qwen3-coder"),
    ],
)
def test_a_choice_names_a_service_that_was_added_or_a_model_of_dotenvs(
    text: str | None, service: str, model: str | None
) -> None:
    known = [
        ModelService(name="local", kind="ollama", url="http://127.0.0.1:1", model="own"),
        ModelService(name="router", kind="openrouter", url="https://openrouter.ai/api"),
    ]
    choice = read_choice(text, known)
    assert (choice.service, choice.model) == (service, model)


async def test_a_group_asks_the_service_of_its_own_and_others_that_of_dotenv(
    harness: ServicesHarness, first: ScriptedMessagesApi, local: ScriptedMessagesApi
) -> None:
    assert await answers(harness) == "from the first"
    await harness.configure(model="local/qwen3")
    assert await answers(harness) == "from the local one"

    before, after = harness.attempts
    assert (before.run.service, before.order.model) == (None, "claude-sonnet-4-6")
    assert (after.run.service, after.order.model, after.order.window) == ("local", "qwen3", 32_768)
    assert (before.order.web_search, after.order.web_search) == (True, False)
    assert before.run.provider != after.run.provider, "its session is resumed at neither"
    assert first.turns[0].headers["x-api-key"] == KEY
    assert KEY not in str(local.turns[0].headers)


async def test_each_kind_of_work_may_have_its_own_and_what_is_chosen_counts_at_once(
    harness: ServicesHarness,
) -> None:
    await harness.choose(WorkKind.TASKS, "local/small")
    await harness.choose(WorkKind.WORKER, "local/smaller")
    assert [await answers(harness, kind) for kind in KINDS] == [
        "from the first",
        "from the local one",
        "from the local one",
    ]
    assert [one.run.model for one in harness.attempts] == ["claude-sonnet-4-6", "small", "smaller"]

    await harness.choose(WorkKind.ALL, "local/large")
    await harness.configure(models={"tasks": "anthropic/claude-haiku-4-5"})
    for kind in KINDS:
        await answers(harness, kind)
    assert [one.run.model for one in harness.attempts[3:]] == ["large", "claude-haiku-4-5", "smaller"]


async def test_main_chooses_in_the_chat_among_the_services_that_the_owner_added(
    harness: ServicesHarness,
) -> None:
    dispatcher = dispatcher_of(harness.store_harness)
    main = await harness.group("main")

    async def ask(number: int, **command: object) -> dict[str, object]:
        request = {"type": "choose_model", "requestId": f"r{number}", **command}
        await dispatcher.handle(main, f"{number}.json", json.dumps(request).encode())
        sql = "SELECT ok, data FROM commands ORDER BY rowid DESC LIMIT 1"
        (row,) = await harness.store_harness.rows(sql)
        return {"ok": bool(row["ok"]), "data": json.loads(row["data"])}

    listed = await ask(1)
    assert listed["data"] == {"services": ["anthropic", "local/qwen3"], "chosen": []}
    assert (await ask(2, model="local/qwen3", targetFolder="family"))["ok"] is True
    assert await answers(harness) == "from the local one"
    assert (await ask(3, model="default", targetFolder="family"))["ok"] is True
    assert (await ask(4, model="local/small", work="tasks"))["ok"] is True
    assert [await answers(harness, kind) for kind in KINDS] == [
        "from the first",
        "from the local one",
        "from the first",
    ]
    assert (await ask(5, model="local/small", work="fallback"))["ok"] is False
    assert (await ask(6, model="not a model"))["ok"] is False


async def test_what_a_service_cannot_do_is_left_out_of_the_request(
    harness: ServicesHarness, local: ScriptedMessagesApi
) -> None:
    await harness.add("local", local.url, abilities=frozenset({Ability.STREAM, Ability.TOOLS}))
    await harness.configure(model="local/qwen3")
    tool = {"name": "note", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
    body = {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b"},
            {"type": "text", "text": "You are Andy.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": [PICTURE, {"type": "text", "text": "What is this?"}]}],
        "tools": [tool, {"type": "tool_search_tool_20251119", "name": "search"}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "metadata": {"user_id": "session_1"},
    }
    await harness.attempt(await harness.asked(), body)
    (sent,) = local.turns
    texts = [part["text"] for part in sent.body["messages"][0]["content"]]

    assert sent.body["model"] == "qwen3", "the CLI names another for work on the side"
    assert sent.body["system"] == [{"type": "text", "text": "You are Andy."}]
    assert texts == [UNSEEN, "What is this?"]
    assert sent.body["tools"] == [{"name": "note", "input_schema": {"type": "object"}}]
    assert not {"thinking", "context_management", "metadata"} & sent.body.keys()
    assert "anthropic-beta" not in sent.headers

    await harness.add("local", local.url, abilities=frozenset({Ability.STREAM}))
    await harness.attempt(await harness.asked(), {"messages": [said("hi")], "tools": [tool]})
    assert "tools" not in local.turns[-1].body


async def test_the_same_conversation_is_written_alike_so_that_a_cache_of_its_prompt_survives(
    harness: ServicesHarness, local: ScriptedMessagesApi
) -> None:
    await harness.configure(model="local/qwen3")
    for number in (1, 2):
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cch={number}"}
        prompt = {"type": "text", "text": "You are Andy."}
        body = {"system": [billing, prompt], "messages": [said("hi")], "metadata": {"user_id": str(number)}}
        await harness.attempt(await harness.asked(), body)
    one, other = local.turns
    assert one.body == other.body


async def test_use_and_cost_are_counted_by_service(
    harness: ServicesHarness, local: ScriptedMessagesApi
) -> None:
    await answers(harness)
    await harness.configure(model="local/qwen3")
    await answers(harness)
    await harness.add("local", local.url, price=ServicePrice(1_000, 0))
    await answers(harness)
    await harness.proxies.admission.usage_writer.flush()
    async with harness.store_harness.database.reading() as tx:
        by_service = await usage.summed(tx, "service")

    assert by_service[None].requests == 1
    assert by_service["local"].requests == 2
    assert by_service["local"].unpriced == 0, "what is at home costs nothing"
    assert by_service["local"].cost_nano_usd == 11 * 1_000_000, "11 tokens at $1,000 a million"


async def test_a_service_that_was_removed_answers_its_run_with_the_reason(harness: ServicesHarness) -> None:
    await harness.configure(model="local/qwen3")
    turn = await harness.asked()
    group = await harness.group()
    asked = harness.orders.chosen_agent(group, turn)
    async with harness.store_harness.database.transaction() as tx:
        await tx.execute("DELETE FROM model_services")
    await harness.proxies.models.refresh()

    assert asked.service_name == "local"
    assert await answers(harness) == "from the first", "what is chosen is a model of .env's then"
    assert harness.attempts[-1].run.model == "local/qwen3"


async def test_without_its_service_a_run_reaches_what_is_no_model(harness: ServicesHarness) -> None:
    await harness.configure(egress={"allowlist": ["allowed.example:443"]})
    run, token = await harness.store_harness.begin_run(), new_token()
    async with harness.store_harness.database.transaction() as tx:
        await tx.execute(
            "UPDATE runs SET token_hash = ?, service = 'local' WHERE id = ?", (token_hash(token), run.id)
        )
        await tx.execute("DELETE FROM model_services")
    await harness.proxies.models.refresh()
    egress = urlsplit(harness.proxies.environment(await harness.group(), "claude", token)["HTTPS_PROXY"])
    serving = asyncio.create_task(harness.proxies.loops()["egress"]())  # type: ignore[arg-type, var-annotated]
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            reader, writer = await asyncio.open_connection(egress.hostname, egress.port)
            credentials = b64encode(f"run:{token}".encode()).decode()
            writer.write(
                b"CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n"
                + f"Proxy-Authorization: Basic {credentials}\r\n\r\n".encode()
            )
            refusal = (await reader.read()).decode()
            writer.close()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    async with httpx.AsyncClient(base_url=harness.url, trust_env=False, timeout=60) as client:
        model = await client.post("/v1/messages", json={}, headers={"x-api-key": token})
        server = await client.post("/mcp/notes", json={}, headers={"x-api-key": token})

    assert "it is not on the list of this group" in refusal
    assert (model.status_code, "'local' was removed" in model.text) == (403, True)
    assert "'local' was removed" not in server.text, "an MCP server is no model either"


@pytest.mark.parametrize(
    ("dotenv", "told"), [("", "Put LOCAL_API_KEY=… into .env"), ("LOCAL_API_KEY='a b'\n", "cannot be read")]
)
async def test_a_service_without_a_usable_key_stops_the_turn_and_the_owner_reads_why(
    harness: ServicesHarness, local: ScriptedMessagesApi, tmp_path: Path, dotenv: str, told: str
) -> None:
    with (tmp_path / ".env").open("a") as file:
        file.write(dotenv)
    await harness.add("local", local.url, key_env="LOCAL_API_KEY")
    await harness.configure(model="local/qwen3")
    turn = await harness.attempt(await harness.asked())
    assert turn.state is TurnState.FAILED
    (text,) = await harness.told("main")
    assert "'local'" in text
    assert told in text


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        (ServicePrice(0, 0), None, True),
        (ServicePrice(1, 5), ServicePrice(3, 15), True),
        (ServicePrice(1, 16), ServicePrice(3, 15), False),
        (ServicePrice(1, 5), None, False),
        (None, ServicePrice(3, 15), False),
    ],
)
def test_what_stands_in_is_never_dearer_as_far_as_that_is_known(
    one: ServicePrice | None, other: ServicePrice | None, may: bool
) -> None:
    assert is_cheap_enough(one, other) is may


@pytest.mark.parametrize(
    ("model", "stand_ins"),
    [("glm-5", []), ("claude-sonnet-4-6", [ModelChoice("second", "claude-sonnet-4-6")])],
)
async def test_a_second_key_is_asked_for_the_same_model_only_if_that_is_one_of_claudes(
    harness: ServicesHarness,
    first: ScriptedMessagesApi,
    tmp_path: Path,
    model: str,
    stand_ins: list[ModelChoice],
) -> None:
    (tmp_path / ".env").write_text("SECOND_KEY=the-second-key\n")
    await harness.add("second", first.url, kind="anthropic", model=None, key_env="SECOND_KEY")
    await harness.choose(WorkKind.FALLBACK, "second")
    await harness.proxies.models.refresh()
    assert harness.proxies.models.stand_ins(ModelChoice("anthropic", model)) == stand_ins


async def test_a_summary_is_asked_of_the_service_for_summaries(
    harness: ServicesHarness, local: ScriptedMessagesApi
) -> None:
    await harness.choose(WorkKind.SUMMARIES, "local/small")
    group = await harness.group()
    asking = harness.proxies.ask_model(
        group, model="claude-haiku-4-5", system="Sum up.", text="…", max_tokens=9
    )
    assert await asyncio.wait_for(asking, 30) == "from the local one"
    assert local.turns[-1].body["model"] == "small"
