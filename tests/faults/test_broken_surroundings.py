"""A full disk, a closed or damaged store, no image, ten thousand messages: said plainly, and got over."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest

from orchestrator.base import supervision as supervising
from orchestrator.domain.errors import StoreCorrupt, StoreError
from orchestrator.domain.values import TurnId
from orchestrator.home.directory import Home
from orchestrator.inbound.prompt import MAX_MESSAGES
from orchestrator.store.conversation import messages
from orchestrator.store.database import Database
from orchestrator.store.groups import groups
from orchestrator.store.runs import turns
from tests.doubles.clock import FakeClock
from tests.processes.andy import AndyProcess, until
from tests.support.homes import furnish
from tests.support.skips import THIS_MACHINE
from tests.support.store_harness import a_group, a_message

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{THIS_MACHINE}nothing can be mounted: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Leave not a byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            while True:
                try:
                    file.write(b"x" * size)
                except OSError:
                    break
    return ballast


@only_root
@pytest.mark.host
def test_a_full_disk_loses_nothing_and_is_said(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=32m", "tmpfs") as disk,
        AndyProcess(disk / "home") as andy,
    ):
        assert andy.say("echo before")["reply"] == "before"
        andy.say("remind me in 5 seconds to breathe")
        running = andy.say("echo meanwhile", wait=0)["id"]
        ballast = fill(disk)
        text, error = _refused(andy)
        assert (error["code"], "free disk space" in error["message"]) == ("unavailable", True)
        with andy.http() as http:
            assert http.get("/healthz").status_code == 200
            assert http.get("/status").status_code == 200
        ballast.unlink()

        assert andy.until_settled(running)["reply"] == "meanwhile"
        reminded = "SELECT 1 FROM messages WHERE content LIKE '%breathe%' AND sender = 'andy'"
        until(lambda: andy.rows(reminded), what="the reminder is sent")
        assert andy.say("echo after")["reply"] == "after"
        said = [row["content"] for row in andy.rows("SELECT content FROM messages")]
        assert said.count("meanwhile") == said.count("after") == 1
        assert text not in said
        assert "loop.gave_up" not in andy.events()
        andy.kill()
        andy.start()
        assert andy.say("echo again")["reply"] == "again"


def _refused(andy: AndyProcess) -> tuple[str, dict[str, str]]:
    """Return the first message that is refused, and the error: the last pages of the store may take some."""
    texts = (f"echo refused {number}" for number in itertools.count())

    def refused() -> tuple[str, dict[str, str]] | None:
        text = next(texts)
        with andy.http() as http:
            response = http.post("/chat", json={"group": "main", "text": text, "wait": 0})
        return (text, response.json()["error"]) if response.status_code == 503 else None

    return until(refused, what="a message is refused")


@pytest.mark.parametrize(
    ("error", "is_waited_out"),
    [
        (StoreError("The database cannot be written (database or disk is full)"), True),
        (StoreCorrupt(), False),
    ],
)
async def test_a_full_disk_is_waited_out_and_a_damaged_store_ends_the_host(
    monkeypatch: pytest.MonkeyPatch, error: StoreError, is_waited_out: bool
) -> None:
    async def no_time(_: float) -> None:
        """Passes."""

    times = 0

    async def loop() -> None:
        nonlocal times
        times += 1
        if times <= supervising.MAX_FAILURES + 2:
            raise error

    monkeypatch.setattr(supervising.asyncio, "sleep", no_time)
    monkeypatch.setattr(supervising.log, "error", lambda *_, **__: None)
    supervisor = supervising.Supervisor(clock=FakeClock(), essential={"delivery"})
    if is_waited_out:
        await supervisor.run("delivery", loop)
        return
    with pytest.raises(StoreCorrupt):
        await supervisor.run("delivery", loop)


@only_root
def test_a_store_that_is_read_only_is_named_at_the_start(tmp_path: Path) -> None:
    andy = AndyProcess(tmp_path / "home")
    furnish(andy.home, [])
    store = andy.home / "store"
    with mounted(store, "--bind", str(store)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(store)], check=True)
        refused = andy.cli("up", "--runtime", "process", "--port", "0")
    assert refused.returncode == 1
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith("andy:")]
    assert str(andy.home) in line
    assert "ermission" in line


@pytest.mark.parametrize("offset", [0, 4096, -4096])
def test_a_damaged_store_is_named_at_the_start_and_left_alone(tmp_path: Path, offset: int) -> None:
    andy = AndyProcess(tmp_path / "home")
    furnish(andy.home, [a_group()])
    store = andy.home / "store" / "messages.db"
    body = bytearray(store.read_bytes())
    place = offset % len(body)
    body[place : place + 2000] = b"\xa5" * 2000
    store.write_bytes(body)
    refused = andy.cli("up", "--runtime", "process", "--port", "0")
    assert refused.returncode == 1
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith("andy:")]
    assert "damaged" in line
    assert "andy restore" in line
    assert store.read_bytes() == body


def _texts_with(andy: AndyProcess, words: str) -> list[str]:
    return [row["text"] for row in andy.rows("SELECT text FROM outbox") if words in row["text"]]


@pytest.mark.docker
def test_a_question_waits_for_a_missing_image_and_is_answered_once_it_is_there(
    tmp_path: Path, docker_client: docker.APIClient, agent_image: str
) -> None:
    tag = f"andy-gone:{secrets.token_hex(4)}"
    docker_client.tag(agent_image, tag)
    with AndyProcess(tmp_path / "home", runtime="docker", environment={"ANDY_IMAGE": tag}) as andy:
        docker_client.remove_image(tag)
        asked = andy.say("echo hello", wait=0)
        missing = f"No agent starts, for the image {tag} is missing"
        until(lambda: missing in andy.cli("status").stdout, what="the status says it")
        until(lambda: _texts_with(andy, missing), what="main is notified")
        docker_client.tag(agent_image, tag)
        try:
            answered = andy.until_settled(asked["id"])
            assert (answered["outcome"], answered["reply"]) == ("answered", "hello")
            (turn,) = andy.rows("SELECT attempt FROM turns WHERE id = ?", asked["turn"])
            assert turn["attempt"] == 1, "what waits for the image counts no attempt"
            assert len(_texts_with(andy, missing)) == 1
            until(lambda: _texts_with(andy, "The image is there"), what="main is notified that it is there")
        finally:
            andy.kill()
            andy._remove_containers()
            docker_client.remove_image(tag)


@pytest.mark.docker
@pytest.mark.usefixtures("agent_image")
def test_a_host_whose_containers_live_on_does_not_go_on_without_docker(tmp_path: Path) -> None:
    with AndyProcess(tmp_path / "home", runtime="docker") as andy:
        andy.say("hello")
        andy.kill()
        blind = dict(andy.environment, DOCKER_HOST=f"unix://{tmp_path}/nothing.sock")
        started = subprocess.run(
            [sys.executable, "-m", "orchestrator", "up", "--runtime", "auto", "--port", "0"],
            env=blind,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert started.returncode == 1, started.stderr
        assert "may live on in Docker" in started.stderr.splitlines()[-1]
        assert "ANDY_RUNTIME=process" in started.stderr.splitlines()[-1]
        andy.start()
        assert andy.say("hello again")["outcome"] == "answered"
        assert len(andy.rows("SELECT 1 FROM runs")) == 1, "the container that lived on answers"


@pytest.mark.host
def test_a_thousand_messages_that_came_meanwhile_are_all_answered(tmp_path: Path) -> None:
    andy = AndyProcess(tmp_path / "home")
    busy, calm = (a_group(name, requires_trigger=False) for name in ("busy", "calm"))
    furnish(andy.home, [busy, calm])
    asyncio.run(_store_messages(andy.home, 1_000))
    with andy:
        assert andy.say("echo calm", group="calm")["reply"] == "calm"
        replies = (
            "SELECT content FROM messages WHERE chat_jid = 'local:busy' AND sender = 'andy' ORDER BY seq"
        )
        until(lambda: len(andy.rows(replies)) == 1_000 // MAX_MESSAGES, what="all its turns are answered")
        answered = " ".join(row["content"] for row in andy.rows(replies)).split()
        assert answered == [f"q{number:05}" for number in range(1_000)]
        assert andy.say("echo more", group="busy")["reply"] == "more"


async def _store_messages(root: Path, count: int) -> None:
    """As the intake stores what comes while a turn waits."""
    database = await Database.open(Home(root).database)
    async with database.transaction() as tx:
        group = await groups.known(tx, "busy")
        turn = TurnId(await turns.join_chat(tx, group.folder, group.jid, now_ms=0))
        for number in range(count):
            seq = await messages.add(
                tx,
                a_message(f"echo q{number:05}", "busy"),
                received_ms=0,
                is_request=True,
                turn_id=turn,
                ignored_reason=None,
            )
        await turns.extend(tx, turn, seq)
    await database.close()
