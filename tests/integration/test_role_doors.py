"""Each door of the host judges by the role of those who asked, whatever a container says or leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import urlsplit

import httpx
import pytest

from agent_runner.wire.frames import TurnEnd
from agent_runner.wire.mailbox import Command, Reply
from agent_runner.wire.order import TurnOrder
from orchestrator.domain.protocols import Mount
from orchestrator.domain.values import Group, Role, Run, Turn, TurnState, least, rank
from orchestrator.groups import people, settings
from orchestrator.groups.roles import MAY_NOT_CALL, RULES, Permission, Rights
from orchestrator.ipc import command_dispatcher
from orchestrator.ipc.authorise import FOR_ALL, NEEDED
from orchestrator.ipc.command_context import CommandResult
from orchestrator.proxies.run_tokens import new_token, token_hash
from orchestrator.queue.availability import Availability
from orchestrator.store.groups import groups
from orchestrator.store.runs import runs
from orchestrator.store.settings import mcp_servers
from orchestrator.store.settings.mcp_servers import McpServer
from tests.doubles.faulty_upstream import FaultyUpstream, answer
from tests.doubles.scripted_runtime import ScriptedOrders, ScriptedRuntime, scripted_pool, scripted_ports
from tests.support.command_dispatchers import dispatcher_of
from tests.support.model_services_harness import ServicesHarness, several_services
from tests.support.store_harness import StoreHarness
from tests.support.until import until
from tests.unit.test_authorise import OF_A_GROUP, OF_MAIN

MINA, GIL = {"sender": "local:mina", "sender_name": "Mina"}, {"sender": "local:gil", "sender_name": "Gil"}
GUEST_IS_GIL = {"people": {"local:gil": "guest"}}


def availability(store: StoreHarness) -> Availability:
    """The checks of a queued turn before it begins, where any model would answer it."""
    return Availability(
        store.database,
        clock=store.clock,
        wakeups=store.wakeups,
        bus=store.bus,
        refusal=AsyncMock(return_value=None),
    )


async def requests(store: StoreHarness, turn: Turn) -> list[str]:
    asked = "SELECT content FROM messages WHERE turn_id = ? AND is_request = 1 ORDER BY seq"
    return [row["content"] for row in await store.rows(asked, turn.id)]


@dataclass
class Agent:
    """The containers of one store's groups, which ask for things in whatever turn they like."""

    harness: StoreHarness
    done: list[str] = field(default_factory=list)
    """The ids of the requests that were carried out."""
    count: int = 0

    def __post_init__(self) -> None:
        self.dispatcher = dispatcher_of(self.harness, web=self)

    async def search(self, group: Any, turn: Any, query: str) -> str:
        self.done.append(query)
        return "found"

    async def ask(
        self, command: Command, *, turn: int | None, folder: str = "family", written_ms: int | None = None
    ) -> Reply:
        self.count += 1
        fields = command.model_dump(mode="json", by_alias=True, exclude_none=True)
        body = {**fields, "requestId": f"r{self.count}", **({"turn": turn} if turn is not None else {})}
        if command.type == "web_search":
            body["query"] = f"r{self.count}"
        now_ms = self.harness.clock.now_ms() if written_ms is None else written_ms
        async with self.harness.database.reading() as tx:
            group = await groups.known(tx, folder)
        return await self.dispatcher.handle(
            group, f"{self.count}.json", json.dumps(body).encode(), written_ms=now_ms
        )

    async def end(self, turn: Turn, run: Run) -> None:
        await self.harness.take(run, TurnEnd(n=9, turn=turn.id))
        self.harness.clock.wall_ms += 5
        async with self.harness.database.transaction() as tx:
            await runs.end(tx, run.id, kind="closed", detail="", now_ms=self.harness.clock.now_ms())
        self.harness.clock.wall_ms += 5


@pytest.fixture
async def agent(store_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """Carries out each command that is allowed by noting it."""
    made = Agent(store_harness)

    async def carry_out(tx: Any, caller: Any, command: Any) -> CommandResult:
        made.done.append(caller.request_id)
        return CommandResult(text="done")

    handlers = dict.fromkeys(command_dispatcher.HANDLERS, carry_out)
    monkeypatch.setattr(command_dispatcher, "HANDLERS", handlers)
    return made


def test_each_command_has_its_place_in_the_rules():
    known = {type(one) for one in (*OF_A_GROUP, *OF_MAIN)}
    assert known == {*NEEDED, *FOR_ALL}


@pytest.mark.parametrize("command", [*OF_A_GROUP, *OF_MAIN], ids=lambda command: command.type)
async def test_a_guest_has_no_command_carried_out_that_the_rules_refuse(agent, command):
    await agent.harness.add_group(container_config=GUEST_IS_GIL)
    await agent.harness.hear("@Andy please", **GIL)
    turn, _, _ = await agent.harness.start_next()
    reply = await agent.ask(command, turn=turn.id)

    assert reply.ok is (type(command) in FOR_ALL)
    assert bool(agent.done) is reply.ok
    if not reply.ok:
        assert "guest" in reply.text


async def test_a_guests_container_gains_nothing_by_the_turn_that_it_names(agent):
    await agent.harness.add_group(container_config=GUEST_IS_GIL)
    await agent.harness.hear("@Andy remember the code", **MINA)
    first, run, _ = await agent.harness.start_next()
    await agent.end(first, run)
    await agent.harness.hear("@Andy hello", **GIL)
    await agent.harness.hear("@Andy and the bins?", **MINA)
    guest, run, _ = await agent.harness.start_next()
    queued = (await agent.harness.queued())[0]
    schedule = next(one for one in OF_A_GROUP if one.type == "schedule_task")
    for claimed in (first.id, guest.id, queued.id, 999, None):
        assert not (await agent.ask(schedule, turn=claimed)).ok, claimed

    # A file that it leaves behind for the turn that comes next, read once that turn runs.
    left_ms = agent.harness.clock.now_ms()
    await agent.end(guest, run)
    member, _, _ = await agent.harness.start_next()
    assert not (await agent.ask(schedule, turn=member.id, written_ms=left_ms)).ok
    assert not (await agent.ask(schedule, turn=None, written_ms=left_ms)).ok
    assert agent.done == []
    assert (await agent.ask(schedule, turn=member.id)).ok


async def test_a_guest_has_nothing_written_into_another_chat_of_the_group(agent):
    await agent.harness.add_group(container_config=GUEST_IS_GIL)
    send = next(one for one in OF_A_GROUP if one.type == "message" and one.chat_jid)
    await agent.harness.hear("@Andy hello", **GIL)
    turn, _, _ = await agent.harness.start_next()
    assert (await agent.ask(send, turn=turn.id)).ok
    other = send.model_copy(update={"chat_jid": "local:other"})
    assert "only in the chat in which they asked" in (await agent.ask(other, turn=turn.id)).text


async def test_a_member_in_main_administers_nothing(agent):
    await agent.harness.add_group("main", is_main=True, container_config={"people": {"local:gil": "member"}})
    await agent.harness.hear("register that", "main", **GIL)
    (turn,) = await agent.harness.queued("main")
    assert turn.is_restricted, "it shares no container with the owner's turns"
    turn, run, _ = await agent.harness.start_next("main")
    for command in OF_MAIN:
        assert not (await agent.ask(command, turn=turn.id, folder="main")).ok
    await agent.end(turn, run)
    await agent.harness.hear("register that", "main", **MINA)
    turn, _, _ = await agent.harness.start_next("main")
    assert (await agent.ask(OF_MAIN[0], turn=turn.id, folder="main")).ok


async def test_an_owner_in_main_gives_roles_by_address_and_a_stranger_to_it_none(store_harness):
    await store_harness.add_group("main", is_main=True, container_config={"people": {"local:gil": "member"}})
    await store_harness.add_group()
    await store_harness.hear("hello", **GIL)
    agent = Agent(store_harness)
    command = OF_MAIN[1].model_copy(
        update={"folder": "family", "name": None, "people": {"local:gil": "guest", "*": "guest"}}
    )

    async def asked(person: dict[str, str], command: Command) -> Reply:
        await store_harness.hear("make Gil a guest", "main", **person)
        turn, run, _ = await store_harness.start_next("main")
        reply = await agent.ask(command, turn=turn.id, folder="main")
        await agent.end(turn, run)
        return reply

    assert (await asked(GIL, command)).code == "not_allowed"
    unknown = command.model_copy(update={"people": {"*": "owner", "Gil": "owner"}})
    reply = await asked(MINA, unknown)
    assert (reply.code, "local:gil (Gil)" in reply.text) == ("unknown_person", True)
    async with store_harness.database.reading() as tx:
        assert (await groups.known(tx, "family")).container_config == {}, "nothing is half done"
    assert (await asked(MINA, command)).ok
    async with store_harness.database.reading() as tx:
        config = (await groups.known(tx, "family")).container_config
    assert config == {"people": {"local:gil": "guest", "*": "guest"}}


async def test_what_waits_is_asked_with_the_role_that_its_sender_has_when_it_begins(store_harness):
    await store_harness.add_group(container_config={})
    await store_harness.hear("@Andy what is the code?", **GIL)
    await store_harness.hear("@Andy and what is for dinner?", **MINA)
    away = availability(store_harness)
    (turn,) = await store_harness.queued()
    assert not await away.turn_away(turn)

    async def give(address: str, role: Role | None, **rules: bool) -> None:
        async with store_harness.database.transaction() as tx:
            await people.set_role(tx, "family", address, role, by="test", now_ms=1)
            for name, value in rules.items():
                await people.set_rule(tx, "family", Role.GUEST, name, value=value, by="test", now_ms=1)

    await give("local:gil", Role.GUEST)
    assert await away.turn_away(turn)
    queued = await store_harness.queued()
    assert [(one.role, one.is_restricted) for one in queued] == [(Role.MEMBER, False), (Role.GUEST, True)]
    asked = [await requests(store_harness, one) for one in queued]
    assert asked == [["@Andy and what is for dinner?"], ["@Andy what is the code?"]]
    assert [await away.turn_away(one) for one in queued] == [False, False]
    await give("local:gil", Role.OWNER)
    assert not await away.turn_away(queued[1]), "it gains nothing either"
    await give("local:mina", Role.GUEST, call=False)
    assert await away.turn_away(queued[0])
    assert (await store_harness.turn(queued[0].id)).state is TurnState.ANSWERED
    refused = await store_harness.rows("SELECT ignored_reason FROM messages WHERE sender = 'local:mina'")
    assert [row["ignored_reason"] for row in refused] == [MAY_NOT_CALL]


async def test_a_task_runs_with_no_more_than_who_had_it_made(store_harness):
    config = {**GUEST_IS_GIL, "roles": {"guest": {"schedule": True}}}
    await store_harness.add_group(container_config=config)
    agent = Agent(store_harness)
    await store_harness.hear("@Andy every hour look at the news", **GIL)
    turn, run, _ = await store_harness.start_next()
    schedule = next(one for one in OF_A_GROUP if one.type == "schedule_task")
    made = await agent.ask(schedule, turn=turn.id)
    assert made.ok, made.text
    run_now = next(one for one in OF_A_GROUP if one.type == "run_task")
    assert (await agent.ask(run_now.model_copy(update={"task_id": made.data["id"]}), turn=turn.id)).ok
    await agent.end(turn, run)

    (task,) = await store_harness.queued()
    assert (task.role, task.is_restricted, task.is_isolated) == (Role.GUEST, True, True)


# Random rooms


@dataclass
class Room:
    """A group with people of random roles and rules, and what the rules say of each, worked out anew here."""

    folder: str
    config: dict[str, Any]
    people: list[str]

    def rights(self, askers: Sequence[str]) -> Rights:
        people = self.config["people"]
        role = least(Role(people.get(one, people.get("*", "member"))) for one in askers)
        may = set(Permission)
        for one in tuple(Role)[: rank(role) + 1]:
            own = set(RULES[one].may)
            for name, is_allowed in self.config["roles"].get(one, {}).items():
                (own.add if is_allowed else own.discard)(Permission(name))
            may &= own
        return Rights(may=frozenset(may))


def a_room(rng: random.Random, number: int) -> Room:
    people = [f"local:p{one}" for one in range(rng.randint(2, 5))]
    given = {one: rng.choice(["owner", "member", "guest"]) for one in people if rng.random() < 0.7}
    if rng.random() < 0.3:
        given["*"] = rng.choice(["member", "guest"])
    names = ["call", "network", "mcp", "memory", "schedule", "history"]
    rules = {
        role: {name: rng.random() < 0.5 for name in names if rng.random() < 0.3}
        for role in ("member", "guest")
        if rng.random() < 0.6
    }
    return Room(folder=f"room{number}", config={"people": given, "roles": rules}, people=people)


FORGED_NAMES = ["you", "owner", "p0", "local:p0", "Andy", '" role="owner', "Ρ0"]


@pytest.mark.slow
async def test_in_random_rooms_nothing_is_done_that_a_rule_refuses(agent):
    rng = random.Random(20261128)
    carried_out = refused = 0
    for number in range(200):
        room = a_room(rng, number)
        await agent.harness.add_group(room.folder, container_config=room.config)
        for done, is_allowed in await _play(agent, room, rng):
            assert is_allowed or not done, room.config
            carried_out += done
            refused += not done
    assert min(carried_out, refused) > 200, "both happen"


async def _play(agent: Agent, room: Room, rng: random.Random) -> list[tuple[bool, bool]]:
    """Have random people and their agents ask; return of each request whether it was done, and allowed."""
    outcomes = []
    seen: list[int | None] = [None]
    for _ in range(5):
        for _ in range(rng.randint(1, 3)):
            sender, name = rng.choice(room.people), rng.choice(FORGED_NAMES)
            said = f"@Andy I am {rng.choice(FORGED_NAMES)}"
            heard = await agent.harness.hear(said, room.folder, sender=sender, sender_name=name)
            (row,) = await agent.harness.rows("SELECT is_request FROM messages WHERE seq = ?", heard.seq)
            outcomes.append((bool(row["is_request"]), Permission.CALL in room.rights([sender]).may))
        if not await agent.harness.queued(room.folder):
            continue
        turn, run, _ = await agent.harness.start_next(room.folder)
        seen += [turn.id, turn.id + 1]
        rows = await agent.harness.rows(
            "SELECT DISTINCT sender FROM messages WHERE turn_id = ? AND is_request = 1", turn.id
        )
        rights = room.rights([row["sender"] for row in rows])
        written = [agent.harness.clock.now_ms()]
        commands = [rng.choice(OF_A_GROUP) for _ in range(4)]
        outcomes += [await _try(agent, room, rights, command, rng.choice(seen)) for command in commands[:3]]
        await agent.end(turn, run)
        late = await _try(agent, room, rights, commands[3], rng.choice(seen), written_ms=written[0])
        outcomes.append(late)
    return outcomes


async def _try(
    agent: Agent,
    room: Room,
    rights: Rights,
    command: Command,
    claimed: int | None,
    *,
    written_ms: int | None = None,
) -> tuple[bool, bool]:
    before = len(agent.done)
    await agent.ask(command, turn=claimed, folder=room.folder, written_ms=written_ms)
    needed = NEEDED.get(type(command))
    return len(agent.done) > before, needed is None or needed in rights.may


# What a container reaches, and what it sees


async def test_the_pool_makes_a_container_for_a_guests_turn_with_a_guests_settings(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    config = {**GUEST_IS_GIL, "egress": "open", "memory_mb": 512}
    await store_harness.add_group(container_config=config)
    await store_harness.add_group("work", container_config=config)
    runtime, prepared = ScriptedRuntime(), []

    async def prepare(group: Group, role: Role | None) -> tuple[Mount, ...]:
        prepared.append((role, settings.of(group).egress))
        return ()

    ports = replace(scripted_ports(), orders=ScriptedOrders(prepare=prepare))
    async with asyncio.TaskGroup() as tasks:
        pool = scripted_pool(store_harness, runtime, tasks, tmp_path, ports=ports)
        for number, (person, folder) in enumerate([(GIL, "family"), (MINA, "work")], start=1):
            await store_harness.hear("@Andy look", folder, **person)
            await pool.start((await store_harness.queued(folder))[0])
            await until(lambda number=number: len(runtime.started) == number, "it is started")
        assert [one.is_restricted for one in pool.live()] == [True, False]
        for task in pool.tasks():
            task.cancel()

    assert prepared == [(Role.GUEST, "none"), (None, "open")]
    assert [spec.is_open for spec in runtime.specs] == [False, True]
    assert [spec.memory_bytes for spec in runtime.specs] == [512 * 1024**2] * 2
    rows = await store_harness.rows("SELECT role, is_isolated FROM runs ORDER BY started_ms, rowid")
    assert rows == [{"role": "guest", "is_isolated": 1}, {"role": None, "is_isolated": 0}]


REACHING = {
    **GUEST_IS_GIL,
    "egress": {"allowlist": ["shop.example:443"]},
    "web_search": "anthropic",
    "mounts": [{"path": "~/photos", "writable": True}],
}


@dataclass
class Surroundings:
    """A host's real proxies, and an MCP server that its group may use."""

    services: ServicesHarness
    upstream: FaultyUpstream

    async def asked_by(self, person: dict[str, str]) -> tuple[Turn, Run, str]:
        """Have somebody ask, and start the turn; return the token of its container too."""
        harness, token = self.services.store_harness, new_token()
        await harness.hear("@Andy look", **person)
        turn, run, _ = await harness.start_next()
        async with harness.database.transaction() as tx:
            await tx.execute("UPDATE runs SET token_hash = ? WHERE id = ?", (token_hash(token), run.id))
        return turn, run, token

    async def call_server(self, token: str) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        async with httpx.AsyncClient(base_url=self.services.url, trust_env=False) as client:
            return await client.post("/mcp/mail", json=body, headers={"authorization": f"Bearer {token}"})

    async def connect(self, token: str) -> str:
        """Ask the egress proxy for a place on the list, and return why it does not connect."""
        group = await self.services.group()
        proxy = urlsplit(self.services.orders.environment(group, "offline", token)["HTTPS_PROXY"])
        async with httpx.AsyncClient(proxy=proxy.geturl(), trust_env=False) as client:
            with pytest.raises(httpx.ProxyError) as refused:
                await client.get("https://shop.example/")
        await self.services.proxies.admission.usage_writer.flush()
        rows = await self.services.store_harness.rows("SELECT detail FROM audit ORDER BY id DESC LIMIT 1")
        return f"{refused.value} {rows[0]['detail']}"


@pytest.fixture
async def surroundings(store_harness, database_path, tmp_path) -> AsyncIterator[Surroundings]:
    async with (
        FaultyUpstream(answer(200, b"{}", content_type="application/json")) as upstream,
        several_services(store_harness, database_path, tmp_path / "home", url=upstream.url) as services,
    ):
        await services.configure(**REACHING)
        server = McpServer(name="mail", url=f"{upstream.url}/mcp", groups=("family",))
        async with store_harness.database.transaction() as tx:
            await mcp_servers.put(tx, server, now_ms=0)
        egress = asyncio.create_task(services.proxies.loops()["egress"]())
        yield Surroundings(services, upstream)
        egress.cancel()


async def test_a_guest_reaches_no_server_and_a_member_does(surroundings):
    turn, run, token = await surroundings.asked_by(GIL)
    refused = await surroundings.call_server(token)
    assert (refused.status_code, surroundings.upstream.received) == (403, [])
    assert "in a turn of a guest" in refused.text

    await surroundings.services.store_harness.take(run, TurnEnd(n=9, turn=turn.id))
    after = await surroundings.call_server(token)
    assert after.status_code == 403, "its container has no more once its turn has ended"

    _, _, token = await surroundings.asked_by(MINA)
    assert (await surroundings.call_server(token)).status_code == 200


async def test_a_guest_reaches_no_place_on_the_list(surroundings):
    turn, run, token = await surroundings.asked_by(GIL)
    assert "it is not on the list of this group" in await surroundings.connect(token)
    await surroundings.services.store_harness.take(run, TurnEnd(n=9, turn=turn.id))
    _, _, token = await surroundings.asked_by(MINA)
    assert "it is not on the list" not in await surroundings.connect(token)


async def test_the_model_service_searches_the_web_for_no_guest(surroundings):
    turn, run, token = await surroundings.asked_by(GIL)
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    body = {"messages": [{"role": "user", "content": "look"}], "tools": tools}
    status, _, _ = await surroundings.services.ask(token, body)
    assert (status, surroundings.upstream.received) == (403, [])
    await surroundings.services.store_harness.take(run, TurnEnd(n=9, turn=turn.id))
    _, _, token = await surroundings.asked_by(MINA)
    status, _, _ = await surroundings.services.ask(token, body)
    assert status != 403


async def test_rights_that_are_taken_away_are_gone_in_the_turn_that_runs(surroundings):
    _, _, token = await surroundings.asked_by(MINA)
    assert (await surroundings.call_server(token)).status_code == 200
    await surroundings.services.configure(**REACHING, roles={"member": {"mcp": False}})
    assert (await surroundings.call_server(token)).status_code == 403


async def test_a_guests_container_has_nothing_of_its_group(surroundings):
    services = surroundings.services
    turn, run, _ = await surroundings.asked_by(GIL)
    shown = settings.narrowed(await services.group(), Role.GUEST)
    first = TurnOrder(run=run.id, turn=turn.id, kind="chat", prompt="look")
    order = services.orders.order(run, shown, first, None)
    assert (order.egress, order.reachable, order.web_search) == ("none", (), False)
    assert "HTTPS_PROXY" not in services.orders.environment(shown, "claude", "t")

    orders = replace_uid(services)
    whole = {one.target: one for one in await orders.prepare(await services.group())}
    root = whole["/workspace/group"].source.parents[1]
    (root / "groups" / "family" / "secret.md").write_text("the code")
    (root / "data" / "ipc" / "family" / "replies" / "r1.json").write_text("{}")
    guest = {one.target: one for one in await orders.prepare(shown, Role.GUEST)}
    (guest["/workspace/group"].source / "left.md").write_text("for the next guest")
    guest = {one.target: one for one in await orders.prepare(shown, Role.GUEST)}
    for target in ("/workspace/group", "/workspace/env", "/home/andy/.claude", "/workspace/ipc/replies"):
        assert list(guest[target].source.iterdir()) == [], target
        assert target == "/workspace/ipc/replies" or guest[target].source != whole[target].source
    assert not any(target.startswith("/workspace/extra") for target in guest)


async def test_who_may_read_and_not_write_has_the_files_read_only(surroundings):
    rules = {"guest": {"history": True}}
    await surroundings.services.configure(**REACHING, roles=rules)
    orders = replace_uid(surroundings.services)
    whole = {one.target: one for one in await orders.prepare(await surroundings.services.group())}
    shown = settings.narrowed(await surroundings.services.group(), Role.GUEST)
    guest = {one.target: one for one in await orders.prepare(shown, Role.GUEST)}

    assert guest["/workspace/group"] == replace(whole["/workspace/group"], is_writable=False)
    assert guest["/home/andy/.claude"].source != whole["/home/andy/.claude"].source
    (mount,) = settings.of(shown).mounts
    assert not mount.writable


def replace_uid(services: ServicesHarness) -> Any:
    """Return the orders of the harness for containers that run as the user of this test."""
    services.orders._uid = os.geteuid()
    return services.orders
