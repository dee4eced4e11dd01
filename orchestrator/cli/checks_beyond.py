"""Checks of what Andy needs around it: the engine, the image, its port, the model service, WhatsApp."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from functools import partial
from typing import Any

from agent_runner.wire.document import WIRE_VERSION
from orchestrator.base.asgi_server import listen
from orchestrator.channels.whatsapp import doctor_checks
from orchestrator.cli import pairing
from orchestrator.cli.finding import DoctorFinding, bad, note, ok
from orchestrator.containers import runtime_selection
from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker import host_paths, network, runtime
from orchestrator.containers.firewall import Firewall, FirewallOutOfReach
from orchestrator.containers.image import base
from orchestrator.containers.image import build as image
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.home import Home
from orchestrator.domain.settings import Settings
from orchestrator.proxies.feature import PORT_FILES
from orchestrator.proxies.model import headers
from orchestrator.proxies.model.credentials import Credential, CredentialSource

ASK_SECONDS = 20.0
ENGINE_SECONDS = 25.0
CHEAP_MODEL = "claude-haiku-4-5"
REJECTED = (401, 403)
_OPEN = "agents reach what this machine serves on other addresses than 127.0.0.1"


async def engine(settings: Settings) -> DoctorFinding:
    if settings.andy_runtime == "process":
        return note("engine", "not used: ANDY_RUNTIME=process, and nothing isolates agents")
    try:
        await runtime.probe()
        version = await asyncio.to_thread(_engine_version)
    except ContainerError as error:
        mend = "start Docker, and let this user use it: sudo usermod -aG docker $USER"
        return bad("engine", str(error), mend=mend)
    return ok("engine", f"Docker {version} at {os.environ.get('DOCKER_HOST', docker_client.DEFAULT_ENGINE)}")


def _engine_version() -> str:
    with docker_client.translated(), closing(docker_client.connect()) as client:
        return str(client.version()["Version"])


async def agent_image(settings: Settings) -> DoctorFinding:
    if settings.andy_runtime == "process":
        return note("image", "not used: ANDY_RUNTIME=process")
    if not await runtime.answers(seconds=ENGINE_SECONDS):
        return note("image", "cannot be told without an engine")
    return await asyncio.to_thread(_agent_image, settings.andy_image)


def _agent_image(tag: str) -> DoctorFinding:
    """Whether it is here, speaks this wire, and is made of the sources that are here, if they are."""
    root = runtime_selection.project_root()
    build = "andy image build" if root else "docker compose build"
    with docker_client.translated(), closing(docker_client.connect()) as client:
        found = base.inspect(client, tag)
        if found is None:
            return bad("image", f"{tag} is not here", mend=build)
        labels = found["Config"]["Labels"] or {}
        is_current = root is None or image.is_current(client, tag, root)
    spoken = labels.get(image.WIRE_LABEL, str(WIRE_VERSION))
    text = f"{tag} of {found['Created'][:16]}, {labels.get(image.SOURCE_LABEL, 'built by Compose')}"
    if spoken != str(WIRE_VERSION):
        return bad("image", f"{text}: it speaks version {spoken}, Andy {WIRE_VERSION}", mend=build)
    if not is_current:
        return note("image", f"{text}: older than its sources; the next start builds it", mend=build)
    return ok("image", text)


async def compose(home: Home, settings: Settings) -> DoctorFinding:
    """Where Andy is a container: whether what agents get has its place on the host."""
    if settings.andy_runtime == "process" or not await runtime.answers(seconds=ENGINE_SECONDS):
        return ok("compose", "Andy is no container")
    own = await asyncio.to_thread(host_paths.find)
    if own is None:
        return ok("compose", "Andy is no container")
    own.check_home(home.root)
    return ok("compose", f"{home.groups} is {own.on_host(home.groups)} on the host")


async def firewall(home: Home, settings: Settings) -> DoctorFinding:
    """Whether agents are kept from what this machine serves to others."""
    if settings.andy_runtime == "process" or not await runtime.answers(seconds=ENGINE_SECONDS):
        return note("firewall", "not used: no agent lives in a container")
    if await asyncio.to_thread(host_paths.find) is not None:
        return ok("firewall", "not needed: with Compose the host is on no network of an agent")
    return await asyncio.to_thread(_firewall, home)


def _firewall(home: Home) -> DoctorFinding:
    install = home.data / "install"
    with docker_client.translated(), closing(docker_client.connect()) as client:
        found = network.find_network(client, install.read_text().strip()) if install.is_file() else None
    if found is None:
        return note("firewall", "not set: Andy has not run with Docker yet", mend="andy up")
    rule = Firewall(install=install.read_text().strip(), bridge=found.bridge, gateway=found.gateway)
    ports = [int(one.read_text()) for name in PORT_FILES if (one := home.data / name).is_file()]
    mend = f"as root: {rule.commands(ports)}"
    try:
        if rule.is_applied():
            return ok("firewall", f"agents on {rule.bridge} reach nothing of this machine but the proxies")
    except FirewallOutOfReach as error:
        return note("firewall", f"{_OPEN} unless root set a rule, which cannot be told ({error})", mend=mend)
    return note("firewall", _OPEN, mend=f"start Andy as a user who may set it, or {mend}")


async def port(settings: Settings, running: dict[str, Any] | None) -> DoctorFinding:
    if running is not None:
        return ok("port", f"Andy {running.get('version', '')} answers on it")
    try:
        listen("127.0.0.1", settings.andy_port).close()
    except OSError as error:
        return bad(
            "port",
            f"{settings.andy_port} of 127.0.0.1 is taken ({error.strerror}), not by this Andy",
            mend="end what has it, or choose another with ANDY_PORT",
        )
    return note("port", f"{settings.andy_port} is free: Andy is not running", mend="andy up")


async def credential(
    home: Home, settings: Settings, running: dict[str, Any] | None, *, is_online: bool
) -> DoctorFinding:
    refused = (running or {}).get("credential", {}).get("refusals")
    if refused:
        return bad("credential", refused[0]["text"], mend=refused[0]["mend"])
    source = CredentialSource(home.root, os.environ)
    found = source.current()
    if found is None:
        return note(
            "credential",
            "none: the offline agent answers",
            mend="for a model put ANTHROPIC_API_KEY=… into .env",
        )
    if not is_online:
        return ok("credential", f"{found.setting} is there; --online asks whether it is taken")
    return await _accepted(found, source.upstream(), settings.andy_model or CHEAP_MODEL)


async def _accepted(found: Credential, upstream: str, model: str) -> DoctorFinding:
    """Have one word counted, which costs nothing where it is served, and tells whether the key is taken."""
    import httpx

    sent = headers.request_headers(
        [(b"content-type", b"application/json"), (b"anthropic-version", b"2023-06-01")], found
    )
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    try:
        async with httpx.AsyncClient(timeout=ASK_SECONDS) as client:
            answer = await client.post(f"{upstream}/v1/messages/count_tokens", json=body, headers=sent)
    except httpx.HTTPError as error:
        return bad(
            "credential", f"{upstream} is not reached: {error!r}", mend="check the network and its proxies"
        )
    if answer.status_code in REJECTED:
        return bad(
            "credential",
            f"{upstream} refuses {found.setting} (HTTP {answer.status_code})",
            mend=f"put a valid {found.setting} into .env",
        )
    if answer.is_server_error:
        return note(
            "credential", f"{upstream} has trouble of its own (HTTP {answer.status_code})", mend="try later"
        )
    return ok("credential", f"{upstream} takes {found.setting}")


async def whatsapp(home: Home) -> DoctorFinding:
    """Whether its library loads here, whether somebody is paired, and how the connection is."""
    for problem in (doctor_checks.library, partial(doctor_checks.login, home.root)):
        seen = await asyncio.to_thread(problem)
        if seen.is_problem:
            return bad("whatsapp", seen.text, mend="as it says; other channels work without it")
    found = await pairing.status(home.root)
    state = str(found["state"]).replace("_", " ")
    if not found["account"]:
        return note("whatsapp", seen.text, mend="andy whatsapp pair")
    if found["is_running"] and state != "connected":
        return note("whatsapp", f"{found['account']}: {state}", mend="andy whatsapp status")
    return ok("whatsapp", f"{found['account']}: {state}")
