"""What `andy status` tells of a host at work."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.containers.docker import runtime
from orchestrator.domain.failures import ModelError, Outage
from orchestrator.domain.values import Folder, LiveRun, RunId, RunState
from orchestrator.proxies.model.credentials import CredentialStatus
from orchestrator.reports import status, status_lines
from orchestrator.reports.status import HostFacts
from orchestrator.store.runs import runs, turn_outages
from orchestrator.store.runs.model_refusals import ModelRefusal
from tests.doubles.clock import FakeClock
from tests.support.store_harness import StoreHarness


def a_host(clock: FakeClock, **changes: Any) -> HostFacts:
    fields: dict[str, Any] = {
        "version": "1.2.3",
        "home": "/home/andy",
        "runtime": "docker",
        "is_isolated": True,
        "image": "andy-agent:latest",
        "agent": "claude",
        "credential": CredentialStatus(setting="ANTHROPIC_API_KEY"),
        "slots": 5,
        "live": (),
        "is_stopping": False,
        "started_ms": clock.now_ms() - 3_900_000,
        "now_ms": clock.now_ms(),
        "steady_ms": clock.steady_ms(),
        "disk_free_bytes": 5 * 2**30,
    }
    return HostFacts(**{**fields, **changes})


async def gathered(store_harness: StoreHarness, **changes: Any) -> dict[str, Any]:
    async with store_harness.database.reading() as tx:
        return await status.gather(tx, a_host(store_harness.clock, **changes))


def lived(run_id: str, folder: str, state: RunState, since_ms: int) -> LiveRun:
    return LiveRun(
        id=RunId(run_id),
        folder=Folder(folder),
        is_isolated=False,
        state=state,
        started_ms=0,
        idle_since_ms=since_ms,
    )


async def test_an_idle_host_says_so(store_harness, clock):
    found = await gathered(store_harness)
    assert found["uptime_seconds"] == 3900.0
    assert (found["containers"], found["waiting"], found["errors"]) == ([], [], [])
    told = "\n".join(status_lines.lines(found))
    assert "for 1 h 5 min" in told
    assert "claude in docker (isolated), image andy-agent:latest" in told
    assert "ANTHROPIC_API_KEY is set" in told
    assert "5.0 GiB free" in told
    assert "errors      none" in told


async def test_what_runs_and_what_waits_is_told_with_how_long(store_harness, clock):
    await store_harness.add_group("family", requires_trigger=False)
    await store_harness.add_group("work", requires_trigger=False)
    await store_harness.hear("first", "family")
    turn, run, _ = await store_harness.start_next("family")
    started = clock.steady_ms()
    clock.pass_ms(7_000)
    await store_harness.hear("second", "work")
    await store_harness.hear("third", "family")
    clock.pass_ms(5_000)
    found = await gathered(store_harness, live=[lived(run.id, "family", RunState.BUSY, started)])
    assert found["containers"] == [
        {
            "run": run.id,
            "group": "family",
            "state": "busy",
            "state_seconds": 12.0,
            "age_seconds": 12.0,
            "turn": {"id": turn.id, "kind": "chat", "attempt": 1, "seconds": 12.0},
        }
    ]
    assert [(one["group"], one["place"], one["waited_seconds"]) for one in found["waiting"]] == [
        ("work", 1, 5.0),
        ("family", 2, 5.0),
    ]
    told = "\n".join(status_lines.lines(found))
    assert f"family: busy for 12 s, turn {turn.id} (chat, try 1) for 12 s; run {run.id}, 12 s old" in told
    assert "1. work: turn" in told
    assert "first" not in str(found), "no texts"


async def test_a_container_that_is_being_made_is_told_with_its_turn_which_waits_no_more(store_harness, clock):
    await store_harness.add_group("family", requires_trigger=False)
    accepted = await store_harness.hear("first", "family")
    making = replace(lived("run-9", "family", RunState.STARTING, clock.steady_ms()), turn_id=accepted.turn_id)
    clock.pass_ms(4_000)
    found = await gathered(store_harness, live=[making])
    (container,) = found["containers"]
    assert (container["state"], container["state_seconds"], container["turn"]["id"]) == (
        "starting",
        4.0,
        accepted.turn_id,
    )
    assert found["waiting"] == []
    assert "family: starting for 4 s" in "\n".join(status_lines.lines(found))


async def test_how_each_conversation_went_on_when_it_last_began_is_told(store_harness, clock):
    for folder in ("work", "family"):
        await store_harness.add_group(folder)
    begun = [
        ("work", "fresh", "there is no session to resume, and nothing was kept", False),
        ("family", "resume", "its session holds all of it", False),
        ("family", "resume_plus_delta", "its session lacks one turn at its end", False),
        ("family", None, None, True),
    ]
    for number, (folder, mode, reason, is_isolated) in enumerate(begun):
        run = replace(
            await store_harness.begin_run(folder, is_isolated=is_isolated),
            id=RunId(f"r{number}"),
            token_hash=f"r{number}",
            restore_mode=mode,
            restore_reason=reason,
        )
        clock.pass_ms(1_000)
        async with store_harness.database.transaction() as tx:
            await runs.begin(tx, replace(run, started_ms=clock.now_ms()))
    found = await gathered(store_harness)
    assert [(one["group"], one["run"], one["mode"]) for one in found["conversations"]] == [
        ("family", "r2", "resume_plus_delta"),
        ("work", "r0", "fresh"),
    ]
    told = "\n".join(status_lines.lines(found))
    assert "resume plus delta: its session lacks one turn at its end" in told


async def test_what_went_wrong_is_told_by_its_kind_for_a_day(store_harness, clock):
    await store_harness.add_group("family", requires_trigger=False)
    await store_harness.hear("first", "family")
    _, run, _ = await store_harness.start_next("family")
    await store_harness.lose(run)
    (waiting,) = (await gathered(store_harness))["waiting"]
    assert (waiting["attempt"], waiting["next_try_seconds"], waiting["reason"]) == (2, 5.0, "it broke.")
    _, run, _ = await store_harness.start_next("family")
    await store_harness.lose(run, is_retryable=False)
    found = await gathered(store_harness)
    assert [(one["kind"], one["count"], one["group"]) for one in found["errors"]] == [
        ("lost", 2, "family"),
        ("turn failed", 1, "family"),
    ]
    assert "1 × turn failed, last" in "\n".join(status_lines.lines(found))
    clock.pass_ms(status.DAY_MS + 1)
    assert (await gathered(store_harness))["errors"] == []


async def test_a_container_that_was_given_up_is_told_beside_the_slots(store_harness, clock):
    left = lived("run-7", "family", RunState.LEFT, clock.steady_ms())
    clock.pass_ms(90_000)
    found = await gathered(store_harness, live=[left])
    assert [(one["state"], one["state_seconds"]) for one in found["containers"]] == [("left", 90.0)]
    told = "\n".join(status_lines.lines(found))
    assert "containers  0 of 5" in told
    assert "family: LEFT, given up 1 min ago and not seen to be gone yet; run run-7" in told


@pytest.mark.parametrize(
    ("credential", "told"),
    [
        (CredentialStatus(), "none: put one into .env"),
        (CredentialStatus(problem=".env cannot be read"), "unusable: .env cannot be read"),
    ],
)
async def test_a_missing_credential_is_told(store_harness, credential, told):
    found = await gathered(store_harness, credential=credential)
    assert found["credential"]["present"] is False
    assert told in "\n".join(status_lines.lines(found))


async def test_the_keys_are_those_that_programs_know(store_harness):
    assert sorted(await gathered(store_harness)) == [
        "agent", "channels", "containers", "conversations", "credential", "disk_free_bytes", "engine",
        "errors", "failing", "foresight",
        "groups", "home",
        "image", "image_problem", "isolated", "models", "notices", "open", "outages", "outbox", "reminders",
        "runtime",
        "settings_changed", "slots", "started_ms",
        "stopping", "tasks", "turns", "uptime_seconds", "version", "waiting", "zone",
    ]  # fmt: skip


async def test_a_service_that_is_down_is_told_with_what_answers_meanwhile(store_harness, clock):
    trouble = {
        "name": "local", "url": "http://127.0.0.1:8080", "key_env": None, "is_usable": True,
        "used_by": ["family", "work (tasks)"], "down_since_ms": clock.now_ms(),
        "cause": "does not answer (HTTP 503)", "mend": "Look whether it runs.", "stand_in": "spare/qwen3",
    }  # fmt: skip
    idle = {
        "name": "spare", "url": "https://b", "key_env": "B_KEY", "is_usable": False, "used_by": [],
        "down_since_ms": None, "cause": None, "mend": None, "stand_in": None,
    }  # fmt: skip
    found = await gathered(store_harness, models=[trouble, idle, {**idle, "name": "c", "used_by": ["main"]}])
    shown = [line for line in status_lines.lines(found) if line.startswith("service")]
    assert shown[0].startswith(
        "service     ⚠️ local (for family, work (tasks)) does not answer (HTTP 503) since "
    )
    assert shown[0].endswith("; spare/qwen3 answers meanwhile. Look whether it runs.")
    assert shown[1:] == ["service     ⚠️ c (for main) has no key: put B_KEY into .env"]
    assert found["models"][0]["stand_in"] == "spare/qwen3"


async def test_a_setting_that_changed_since_the_start_is_named(store_harness):
    changed = ({"name": "TZ", "source": ".env"}, {"name": "ANDY_MODEL", "source": ""})
    found = await gathered(store_harness, zone="Etc/UTC", settings_changed=changed)

    assert found["zone"] == "Etc/UTC"
    assert (
        "settings    ⚠️ changed since the start, so not in force: TZ (.env), ANDY_MODEL. Restart Andy"
        in status_lines.lines(found)
    )
    assert not [line for line in status_lines.lines(await gathered(store_harness)) if "settings" in line]


async def test_no_scheduled_task_is_not_said_as_if_nothing_were_to_be_done(store_harness):
    assert "tasks       none scheduled" in status_lines.lines(await gathered(store_harness))


async def test_a_docker_that_does_not_answer_is_told_at_once(store_harness, clock):
    found = await gathered(store_harness, has_engine=False)
    assert found["engine"] is False
    assert "engine      ⚠️ Docker does not answer" in "\n".join(status_lines.lines(found))


@pytest.mark.parametrize("is_listening", [False, True])
async def test_an_engine_that_is_away_or_hangs_is_no_engine(tmp_path, monkeypatch, is_listening):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    if is_listening:  # it takes the call, and never says a word
        (tmp_path / "engine.sock").unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as hung:
            hung.bind(f"{tmp_path}/engine.sock")
            hung.listen(8)
            assert await runtime.answers(seconds=0.5) is False
    else:
        assert await runtime.answers(seconds=60) is False


async def test_a_key_that_is_refused_is_red_and_one_that_is_taken_is_told_as_taken(store_harness, clock):
    refusal = ModelRefusal(
        id=1,
        cause=ModelError.KEY_REFUSED,
        model=None,
        setting="ANTHROPIC_API_KEY",
        status=401,
        since_ms=clock.now_ms(),
        notified_ms=None,
    )
    credential = CredentialStatus(setting="ANTHROPIC_API_KEY", refusals=[refusal])
    found = await gathered(store_harness, credential=credential)
    assert found["credential"]["accepted"] is False
    told = "\n".join(status_lines.lines(found))
    assert "ANTHROPIC_API_KEY is set; the model service refuses requests" in told
    assert "model       ⚠️ the model service refuses ANTHROPIC_API_KEY (HTTP 401), since" in told
    assert "Put a valid ANTHROPIC_API_KEY into .env." in told

    taken = CredentialStatus(setting="ANTHROPIC_API_KEY", accepted_ms=clock.now_ms())
    found = await gathered(store_harness, credential=taken)
    assert found["credential"]["accepted"] is True
    assert "ANTHROPIC_API_KEY is accepted" in "\n".join(status_lines.lines(found))


async def test_a_model_for_which_turns_wait_is_a_line(store_harness, clock):
    await store_harness.add_group("family")
    await store_harness.hear("@Andy hi")
    (turn,) = await store_harness.queued()
    taken = CredentialStatus(setting="ANTHROPIC_API_KEY", accepted_ms=clock.now_ms())
    async with store_harness.database.transaction() as tx:
        await turn_outages.begin(tx, turn.id, Outage.MODEL, since_ms=clock.now_ms())
    found = await gathered(store_harness, credential=taken)
    assert found["outages"] == [{"cause": "model", "turns": 1, "since_ms": clock.now_ms()}]
    (line,) = [one for one in status_lines.lines(found) if one.startswith("model")]
    assert line.startswith("model       ⚠️ slow, overloaded or out of reach since ")
    assert line.endswith(": 1 turn waits for it")


async def test_a_missing_image_is_a_line_with_its_fix(store_harness):
    found = await gathered(store_harness, image_problem="No agent starts: 'andy image build'.")

    assert "image       ⚠️ No agent starts: 'andy image build'." in status_lines.lines(found)
