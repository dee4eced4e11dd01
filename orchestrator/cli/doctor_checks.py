"""The checks of `andy doctor`: first of this machine, then of the services that Andy needs.

Each returns one `DoctorFinding` and changes nothing. A check that cannot be made raises; `doctor.examine`
makes a finding of the error.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

from agent_runner.wire.document import WIRE_VERSION
from agent_runner.wire.listeners import listen
from orchestrator.base import installation
from orchestrator.base.clock import SystemClock
from orchestrator.base.tables import counted, size_text
from orchestrator.channels.description import ChannelDescription, ChannelFinding
from orchestrator.cli import commands
from orchestrator.cli.channels import connection_status
from orchestrator.compose.self_inspect import own_id
from orchestrator.containers import mount_allowlist, runtime_selection
from orchestrator.containers.docker import client as docker_client
from orchestrator.containers.docker import host_paths, network, runtime
from orchestrator.containers.firewall import Firewall, FirewallOutOfReach
from orchestrator.containers.image import base
from orchestrator.containers.image import build as image
from orchestrator.domain.errors import ContainerError, StoreError
from orchestrator.domain.web_search import SearchService
from orchestrator.groups import owner
from orchestrator.groups import settings as group_settings
from orchestrator.home.directory import Home
from orchestrator.home.settings import Settings
from orchestrator.inbound import senders
from orchestrator.proxies import web_search
from orchestrator.proxies.feature import PORT_FILES
from orchestrator.proxies.model import abilities, headers
from orchestrator.proxies.model.credentials import Credential, CredentialSource
from orchestrator.proxies.model.routing import ModelRouter, prices_of
from orchestrator.reports import mcp
from orchestrator.reports import models as model_reports
from orchestrator.reports.models import ServiceConditionView
from orchestrator.reports.status_lines import outage_text, service_trouble_text
from orchestrator.store import database
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.store.reader import read_once
from orchestrator.store.settings import model_services

TIGHT_BYTES, LOW_BYTES = 200 * 1024**2, 2 * 1024**3
"""Free bytes of the disk below which a check is bad, and below which it is a note."""
INOTIFY = Path("/proc/sys/fs/inotify")
ENOUGH_WATCHES = {"max_user_watches": 8_192, "max_user_instances": 128}
"""The least sufficient value of each limit of inotify: a desktop's other programs use up a lower one."""
AHEAD_MS = 5 * 60_000
"""Milliseconds by which the newest message may be ahead of the clock."""
FIRST_YEAR = 2026
ACCESS_OF_OTHERS = 0o077
"""Mode bits that let other users read or write a file."""
ASK_SECONDS = 20.0
"""Seconds that the model service may take to answer."""
ENGINE_SECONDS = 25.0
"""Seconds that the container engine may take to answer."""
CHEAP_MODEL = "claude-haiku-4-5"
REJECTED = (401, 403)
_OPEN_TEXT = "agents can reach services of this machine on other addresses than 127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """The result of one check. `fix` names the fix; a `note` may be intended by the owner."""

    name: str
    state: Literal["ok", "note", "bad"]
    text: str
    fix: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether it is a fault."""
        return self.state == "bad"


def ok(name: str, text: str) -> DoctorFinding:
    """Return the finding of a check that found nothing wrong."""
    return DoctorFinding(name=name, state="ok", text=text)


def note(name: str, text: str, *, fix: str = "") -> DoctorFinding:
    """Return the finding of something that may be intended; `fix` names what to do if it is not."""
    return DoctorFinding(name=name, state="note", text=text, fix=fix)


def bad(name: str, text: str, *, fix: str) -> DoctorFinding:
    """Return the finding of a fault, with its fix."""
    return DoctorFinding(name=name, state="bad", text=text, fix=fix)


# This machine


async def permissions(home: Home, messengers: Sequence[ChannelDescription]) -> DoctorFinding:
    """Check that the home can be written, and that no other user can read its secrets.

    The logins of `messengers` are secrets, too.
    """
    return await asyncio.to_thread(_permissions, home, messengers)


def _permissions(home: Home, messengers: Sequence[ChannelDescription]) -> DoctorFinding:
    """Check that this user can write the home's folders and read its secrets, and no other can read these.

    Blocks.
    """
    for folder in (home.groups, home.data, home.database.parent):
        existing_folder = next(candidate for candidate in (folder, *folder.parents) if candidate.exists())
        if not os.access(existing_folder, os.W_OK | os.X_OK):
            fix_for_folder = f"sudo chown -R {os.getuid()} {shlex.quote(str(folder))}"
            # A folder above the home may be shared, such as /srv: its owner must not be changed.
            fix_for_parent = "fix its permissions, or choose another home with ANDY_HOME"
            return bad(
                "permissions",
                f"{existing_folder} cannot be written by this user",
                fix=fix_for_folder if existing_folder == folder else fix_for_parent,
            )
    logins = [home.root / path for messenger in messengers for path in messenger.secret_files]
    secrets = (home.token_file, home.root / ".env", home.database, *logins)
    unreadable = shlex.join(str(path) for path in secrets if path.exists() and not os.access(path, os.R_OK))
    if unreadable:
        fix = f"sudo chown {os.geteuid()} {unreadable} && sudo chmod 600 {unreadable}"
        return bad("permissions", f"this user may not read {unreadable}", fix=fix)
    readable_by_others = [
        path for path in secrets if path.exists() and path.stat().st_mode & ACCESS_OF_OTHERS
    ]
    if readable_by_others:
        paths = shlex.join(str(path) for path in readable_by_others)
        is_own = all(path.stat().st_uid == os.geteuid() for path in readable_by_others)
        chown_part = "" if is_own else f"sudo chown {os.geteuid()} {paths} && sudo "
        return bad("permissions", f"others may read {paths}", fix=f"{chown_part}chmod 600 {paths}")
    return ok("permissions", "folders can be written, secrets are yours alone")


async def store(home: Home) -> DoctorFinding:
    """Check that the database can be read, and has the version of this Andy."""
    return await asyncio.to_thread(_store, home.database)


def _store(path: Path) -> DoctorFinding:
    """Check the database at a path, its version, and the size of its write-ahead log. Blocks.

    Raises `StoreError` for a damaged one.
    """
    known_version = len(database.migrations())
    if not path.exists():
        return note(
            "store", f"there is no database yet; the first start creates it with version {known_version}"
        )
    database.check(path)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > known_version:
        return bad(
            "store",
            f"version {version}, written by a newer Andy; this one knows {known_version}",
            fix="upgrade Andy, or restore a backup of this version",
        )
    if version < known_version:
        return note(
            "store", f"sound, version {version}; the next start copies it and migrates it to {known_version}"
        )
    log_bytes = database.wal_bytes(path)
    size, log_size = map(size_text, (path.stat().st_size, log_bytes))
    text = f"sound, version {version}, {size}, its log {log_size}"
    if log_bytes > 2 * database.WAL_BYTES:
        fix = f"end the program that reads it ('sudo fuser {path}' names it); Andy's next write truncates it"
        return note("store", f"{text}, which cannot be truncated while a program reads it", fix=fix)
    return ok("store", text)


async def disk(home: Home) -> DoctorFinding:
    """Check how much space the disk of the home has left."""
    free_bytes = (await asyncio.to_thread(shutil.disk_usage, _nearest_existing(home.root))).free
    text = f"{free_bytes / 2**30:,.1f} GiB free at {home.root}"
    if free_bytes < TIGHT_BYTES:
        return bad("disk", text, fix="make room: messages are refused when it is full")
    return note("disk", text, fix="make room soon") if free_bytes < LOW_BYTES else ok("disk", text)


async def watches(limits: Path = INOTIFY) -> DoctorFinding:
    """Check that the kernel lets this user watch enough files; otherwise changes are noticed late.

    `limits` is the kernel's folder with a file for each limit.
    """
    low = []
    for name, enough in ENOUGH_WATCHES.items():
        try:
            limit = int(limits.joinpath(name).read_text())  # a file of the kernel, in memory
        except (OSError, ValueError):
            return ok("watches", "this system sets no limits of inotify")
        if limit < enough:
            low.append(f"fs.inotify.{name}={enough}")
    if low:
        fix = f"sudo sysctl {' '.join(low)}, and the same in a file of /etc/sysctl.d"
        return note("watches", "the kernel lets this user watch few files: changes may be seen late", fix=fix)
    return ok("watches", "the kernel lets this user watch enough files")


def _nearest_existing(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    return path if path.exists() else _nearest_existing(path.parent)


async def clock(home: Home, settings: Settings, running: dict[str, Any] | None) -> DoctorFinding:
    """Check that the clock is right, and that Andy runs with the zone of TZ.

    The clock is wrong before `FIRST_YEAR`, or more than `AHEAD_MS` before the time of the newest message. A
    note says if the zone is UTC. `running` is the status of the running Andy; None if none answers.
    """
    status = running or {}
    zone = status.get("zone", settings.tz)  # an older running Andy does not report it
    now = datetime.now(ZoneInfo(zone))
    newest_ms = await asyncio.to_thread(_newest_ms, home.database)
    newest_ahead_ms = newest_ms - int(time.time() * 1000)
    # No clock that is right shows a year before this Andy was written.
    if now.year < FIRST_YEAR or newest_ahead_ms > AHEAD_MS:
        behind = (
            f", {newest_ahead_ms // 60_000} minutes before the newest message"
            if newest_ahead_ms > AHEAD_MS
            else ""
        )
        return bad(
            "clock", f"it is {now:%Y-%m-%d %H:%M}{behind}", fix="set this machine's clock: timedatectl"
        )
    # Only if Andy himself has noticed a change: TZ may differ only in the environment of this command.
    if zone != settings.tz and any(finding["name"] == "TZ" for finding in status.get("settings_changed", ())):
        # The file or environment that sets TZ.
        origin = settings.origins.get("tz", "this machine")
        text = f"TZ is {settings.tz} in {origin}; Andy runs with {zone} until it is started again"
        if installation.is_in_compose():
            return bad("clock", text, fix="docker compose restart andy")
        # The hint begins with "To restart Andy: stop it, then 'andy up'".
        return bad("clock", text, fix=commands.hint_for("restart").removeprefix("To "))
    text = f"{now:%Y-%m-%d %H:%M} in {zone}"
    if zone in ("UTC", "Etc/UTC"):
        return note("clock", text, fix="reminders are in UTC: put TZ=Europe/Berlin or the like into .env")
    return ok("clock", text)


def _newest_ms(path: Path) -> int:
    """Return when the newest message was received, in epoch milliseconds; 0 if there is none. Blocks."""
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            newest = connection.execute("SELECT coalesce(max(received_ms), 0) FROM messages").fetchone()
    except sqlite3.Error:  # a damaged store: its own check reports it
        return 0
    return int(newest[0])


async def lists() -> DoctorFinding:
    """Check the owner's files that list what agents may mount, and who may write to Andy."""
    return await asyncio.to_thread(_lists)


def _lists() -> DoctorFinding:
    """Check that the owner's allowlists can be read, and that the allowed folders exist. Blocks.

    An allowlist (of folders or of senders) that cannot be read allows nothing.
    """
    folder = owner.owner_directory()
    mounts = owner.OwnerFile(folder / mount_allowlist.FILE, mount_allowlist.MountRules).read()
    people = owner.OwnerFile(folder / senders.FILE, senders.SenderRules).read()
    for file in (mounts, people):
        if file.trouble:
            return bad("lists", file.trouble, fix="correct the file, or remove it")
    roots = mounts.rules.allowed_roots if mounts.rules else ()
    missing = [root.path for root in roots if not _is_there(root.path)]
    if missing:
        return note(
            "lists", f"{', '.join(missing)} of {mount_allowlist.FILE} is not there", fix="remove the line"
        )
    names = [name for name, file in ((mount_allowlist.FILE, mounts), (senders.FILE, people)) if file.rules]
    return ok("lists", f"{' and '.join(names) or 'none'} in {folder}")


def _is_there(path: str) -> bool:
    """Return whether something exists at a path that this user can reach; it may begin with `~`. Blocks."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError):  # this user may not look at it, or its `~` names an unknown user
        return False


# Services that Andy needs


async def engine(settings: Settings) -> DoctorFinding:
    """Check that the container engine answers, and that it isolates agents."""
    if settings.andy_runtime == "process":
        return note("engine", "not used: ANDY_RUNTIME=process, and nothing isolates agents")
    try:
        await runtime.probe()
        version = await asyncio.to_thread(_engine_version)
    except ContainerError as error:
        fix = "start Docker, and let this user use it: sudo usermod -aG docker $USER"
        return bad("engine", str(error), fix=fix)
    address = os.environ.get("DOCKER_HOST", docker_client.DEFAULT_ENGINE)
    if version.startswith("Podman"):
        fix = "use Docker's own engine, or ANDY_RUNTIME=process, which isolates nothing"
        return bad("engine", f"{version} at {address}: no agent starts, as it cannot isolate one", fix=fix)
    return ok("engine", f"{version} at {address}")


def _engine_version() -> str:
    """Return the name and version of the engine. Blocks.

    Raises `ContainerError`, for example if no engine answers.
    """
    with docker_client.translated(), closing(docker_client.connect()) as client:
        version = client.version()
    component_names = {str(part.get("Name")) for part in version.get("Components") or ()}
    return f"{'Podman' if 'Podman Engine' in component_names else 'Docker'} {version['Version']}"


async def agent_image(settings: Settings) -> DoctorFinding:
    """Check that the agents' image exists, fits this Andy, and is newer than its sources.

    If agents run as processes, or no engine answers, nothing can be checked, and a note says so.
    """
    if settings.andy_runtime == "process":
        return note("image", "not used: agents run as processes")
    if not await runtime.answers(seconds=ENGINE_SECONDS):
        return note("image", "cannot be checked without an engine")
    return await asyncio.to_thread(_agent_image, settings.andy_image)


def _agent_image(tag: str) -> DoctorFinding:
    """Check that the agents' image `tag` exists, fits this Andy, and is newer than its sources. Blocks.

    An image fits if its program speaks this version of the protocol between host and container.
    """
    sources = runtime_selection.image_sources()
    with docker_client.translated(), closing(docker_client.connect()) as client:
        details = base.inspect(client, tag)
        if details is None:
            return bad(
                "image", f"{tag} is not here, so no agent starts", fix=runtime_selection.image_fix(tag)
            )
        labels = details["Config"]["Labels"] or {}
        is_current = sources is None or image.is_current(client, tag, sources)
    # An image without the label was built by Compose together with this Andy, so its version is this one.
    image_version = labels.get(image.WIRE_LABEL, str(WIRE_VERSION))
    text = f"{tag} of {details['Created'][:16]}, {labels.get(image.SOURCE_LABEL, 'built by Compose')}"
    is_pinned = "@" in tag
    fix = runtime_selection.version_fix(tag) if is_pinned else runtime_selection.image_fix()
    if image_version != str(WIRE_VERSION):
        return bad(
            "image",
            f"{text}: its runner has protocol version {image_version}, Andy has {WIRE_VERSION}",
            fix=fix,
        )
    if not is_current and is_pinned:
        return bad("image", f"{text}: of another version than this Andy, who does not start with it", fix=fix)
    if not is_current:
        return note("image", f"{text}: older than its sources; the next start builds it", fix=fix)
    return ok("image", text)


async def compose(home: Home, settings: Settings) -> DoctorFinding:
    """Check, if Andy is a container, that the agents' directories are mounted from the host.

    It passes unchecked if agents are plain processes. If no engine answers, the mounts cannot be read, and a
    note says so. Raises `ContainerError` if they are not mounted.
    """
    if settings.andy_runtime == "process" or await asyncio.to_thread(own_id) is None:
        return ok("compose", "Andy does not run in a container")
    if not await runtime.answers(seconds=ENGINE_SECONDS):
        return note("compose", "cannot be checked without an engine")
    own_mounts = await asyncio.to_thread(host_paths.find)
    if own_mounts is None:
        return ok("compose", "Andy does not run in a container")
    own_mounts.check_home(home.root)
    return ok("compose", f"{home.groups} is {own_mounts.on_host(home.groups)} on the host")


async def firewall(home: Home, settings: Settings) -> DoctorFinding:
    """Check that agents cannot reach the servers of this machine."""
    if settings.andy_runtime == "process" or not await runtime.answers(seconds=ENGINE_SECONDS):
        return note("firewall", "not used: no agent runs in a container")
    if await asyncio.to_thread(host_paths.find) is not None:
        return ok("firewall", "not needed: with Compose the host is on no network of an agent")
    return await asyncio.to_thread(_firewall, home)


def _firewall(home: Home) -> DoctorFinding:
    """Check that the firewall has this install's rule, which keeps agents from the servers of this machine.

    An install is a home that Andy has run on; the file `data/install` has its id. The rule belongs to the
    install's network in Docker, so without an install or a network it is not set. The call blocks, and raises
    the errors of `docker_client.translated`.
    """
    install_file = home.data / "install"
    # Read here, since an error of the file is none of the engine.
    install = install_file.read_text().strip() if install_file.is_file() else None
    with docker_client.translated(), closing(docker_client.connect()) as client:
        network_info = network.find_network(client, install) if install is not None else None
    if install is None or network_info is None:
        return note("firewall", "not set: Andy has not run with Docker yet", fix="andy up")
    rule = Firewall(install=install, bridge=network_info.bridge, gateway=network_info.gateway)
    # The ports of the proxies, which are all that agents may reach of this machine.
    ports = [int(port_file.read_text()) for name in PORT_FILES if (port_file := home.data / name).is_file()]
    fix = f"as root: {rule.commands(ports)}"
    try:
        if rule.is_applied():
            return ok("firewall", f"agents on {rule.bridge} reach nothing of this machine but the proxies")
    except FirewallOutOfReach as error:
        return note(
            "firewall", f"{_OPEN_TEXT} unless root set a rule, which cannot be seen ({error})", fix=fix
        )
    return note("firewall", _OPEN_TEXT, fix=f"start Andy as a user who may set it, or {fix}")


async def port(settings: Settings, running: dict[str, Any] | None) -> DoctorFinding:
    """Check that Andy answers at its port, or that the port is free.

    `running` is the status of the running Andy; None if none answers.
    """
    if running is not None:
        return ok("port", f"Andy {running.get('version', '')} answers on it")
    if settings.andy_port == 0:
        return note("port", "chosen by the system at the start: Andy is not running", fix="andy up")
    try:
        listen("127.0.0.1", settings.andy_port).close()
    except OSError as error:
        place = f"{settings.andy_port} of 127.0.0.1"
        if error.errno != errno.EADDRINUSE:
            return bad(
                "port", f"{place} cannot be used ({error.strerror})", fix="choose another port with ANDY_PORT"
            )
        return bad(
            "port",
            f"{place} is taken ({error.strerror}), not by this Andy",
            fix="stop the program that uses it, or choose another port with ANDY_PORT",
        )
    return note("port", f"{settings.andy_port} is free: Andy is not running", fix="andy up")


async def parts(running: dict[str, Any] | None) -> DoctorFinding:
    """Check that no part of the running Andy fails, such as a messenger; `running` is its status.

    `running` is None if no Andy answers.
    """
    if running is None:
        return note("parts", "checked only while Andy runs and answers")
    failing = running.get("failing", [])
    if not failing:
        return ok("parts", "all parts of the running Andy work")
    named = "; ".join(f"{part['name']} ({part['reason']})" for part in failing)
    return bad("parts", f"{named}: the rest works", fix="see 'andy logs', or upgrade")


async def credential(
    home: Home, settings: Settings, running: dict[str, Any] | None, *, is_online: bool
) -> DoctorFinding:
    """Check that there is a key for the model service; with `is_online`, that the service accepts it.

    `running` is the status of the running Andy, which knows refusals and outages; None if none answers.
    """
    refusals = (running or {}).get("credential", {}).get("refusals")
    if refusals:
        return bad("credential", refusals[0]["text"], fix=refusals[0]["mend"])
    for outage in (running or {}).get("outages", []):
        if outage["cause"] == "model":
            text = outage_text(outage, settings.zone)
            return note("credential", f"the model service is {text}", fix="Andy tries again by himself")
    source = CredentialSource(home.root, os.environ)
    current_credential = source.current()
    if current_credential is None:
        rows = (running or {}).get("models") or await _stored_services(home, settings)
        # The first row is the service of `.env`.
        if rows and not rows[0]["used_by"]:
            return ok("credential", "none in .env, and none is needed: all groups use other services")
        return note(
            "credential",
            "none: the offline agent answers",
            fix="for a model put ANTHROPIC_API_KEY=… into .env",
        )
    if not is_online:
        return ok("credential", f"{current_credential.setting} is set; --online tests whether it is accepted")
    return await _check_key_online(current_credential, source.upstream(), settings.andy_model or CHEAP_MODEL)


async def _check_key_online(credential: Credential, upstream: str, model: str) -> DoctorFinding:
    """Check whether the model service at the address `upstream` accepts a key.

    The service is asked to count the tokens of one word, which costs nothing. The statuses 401 and 403 mean
    that it refuses the key; after an error of the server (5xx) the finding is a note. Any other answer counts
    as accepted, such as that of a service which cannot count tokens.
    """
    import httpx

    sent_headers = headers.request_headers(
        [(b"content-type", b"application/json"), (b"anthropic-version", b"2023-06-01")], credential
    )
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    try:
        async with httpx.AsyncClient(timeout=ASK_SECONDS) as client:
            response = await client.post(
                f"{upstream}/v1/messages/count_tokens", json=body, headers=sent_headers
            )
    except httpx.HTTPError as error:
        return bad(
            "credential", f"{upstream} cannot be reached: {error!r}", fix="check the network and its proxies"
        )
    if response.status_code in REJECTED:
        return bad(
            "credential",
            f"{upstream} refuses {credential.setting} (HTTP {response.status_code})",
            fix=f"put a valid {credential.setting} into .env",
        )
    if response.is_server_error:
        return note(
            "credential", f"{upstream} answers with an error (HTTP {response.status_code})", fix="try later"
        )
    return ok("credential", f"{upstream} accepts {credential.setting}")


async def models(
    home: Home, settings: Settings, running: dict[str, Any] | None, *, is_online: bool
) -> DoctorFinding:
    """Check that each chosen model service exists, has its key and, as far as known, answers.

    If the owner has added no service, that of `.env` is not checked here but by `credential`. With
    `is_online`, each added service that is used gets a short request. `running` is the status of the running
    Andy; None if none answers.
    """
    if reasons := await _refused_choices(home, settings):
        fix = "choose another with 'andy models use SERVICE/MODEL', or correct the setting in .env"
        return bad("models", " ".join(reasons), fix=fix)
    rows = (running or {}).get("models") or await _stored_services(home, settings)
    # The services that the owner has added have an address in their row; that of `.env` has none.
    added = [row for row in rows if row["url"] is not None]
    if not added:
        return ok("models", "the service of .env is the only one")
    for row in rows:
        if row["used_by"] and row["down_since_ms"] is not None:
            text = f"{row['name']} {service_trouble_text(row, settings.zone)}"
            # Not a fault as long as another service answers in its place (`stand_in`); `mend` is the advice.
            make_finding = note if row["stand_in"] else bad
            return make_finding("models", text, fix=row["mend"] or "")
    for row in added:
        if row["used_by"] and not row["is_usable"]:
            fix = f"put {row['key_env'] or 'a key'}=… into .env"
            return bad("models", f"{row['name']} is used for {_users(row)} and has no key", fix=fix)
    used = [row for row in added if row["used_by"]]
    if is_online and (result := await _first_silent_service(home, used)):
        return result
    texts = "; ".join(f"{row['name']} for {_users(row)}" for row in rows if row["used_by"])
    return ok("models", f"{texts}{'' if is_online or not used else '; --online tests whether they answer'}")


def _users(service: ServiceConditionView) -> str:
    """Return the groups and purposes that a service is used for, as text."""
    return ", ".join(service["used_by"])


async def _refused_choices(home: Home, settings: Settings) -> list[str]:
    """Return a sentence for each stored choice of a model that cannot be used, with the reason."""
    if not home.database.exists():
        return []
    has_gateway = CredentialSource(home.root, os.environ).has_gateway()
    query = partial(model_reports.refused_choices, settings=settings, has_gateway=has_gateway)
    try:
        return await asyncio.to_thread(read_once, home.database, query)
    except StoreError:  # an older or damaged store: its own check reports it
        return []


async def _stored_services(home: Home, settings: Settings) -> list[ServiceConditionView]:
    """Return the model services in a home's database, each with its uses and whether it has its key.

    Used for a home whose Andy does not run. Recorded outages are left out, since they may be over.
    """
    if not home.database.exists():
        return []
    try:
        database_of_home = await Database.open_readonly(home.database)
        try:
            router = ModelRouter(
                database_of_home,
                settings=settings,
                credentials=CredentialSource(home.root, os.environ),
                prices=prices_of(settings),
            )
            async with database_of_home.reading() as tx:
                return await model_reports.conditions(tx, router, is_live=False)
        finally:
            await database_of_home.close()
    except StoreError:  # an older or damaged store: its own check reports it
        return []


async def _first_silent_service(home: Home, used: Sequence[ServiceConditionView]) -> DoctorFinding | None:
    """Send each of the services `used` a short request; return a finding about the first that is silent.

    None if all answer. Services without a model are left out.
    """
    credentials = CredentialSource(home.root, os.environ)
    for row in used:
        query = partial(model_services.by_name, name=row["name"])
        service = await asyncio.to_thread(read_once, home.database, query)
        if service is None or service.model is None:
            continue
        # `briefly` makes it return one finding: whether the service answers a message.
        (answer,) = await abilities.examine_service(credentials, service, service.model, briefly=True)
        if not answer.is_there:
            fix = f"check that it runs; 'andy models test {row['name']}' shows more"
            return bad("models", f"{row['name']} at {service.url}: {answer.detail}", fix=fix)
    return None


async def search(home: Home, settings: Settings) -> DoctorFinding:
    """Check that each used web search service has the key or the address that it needs."""
    used = {settings.andy_web_search}
    if home.database.exists():
        with suppress(StoreError):  # a damaged database: its own check reports it
            all_groups = await asyncio.to_thread(read_once, home.database, groups.every)
            used |= {
                group_settings.search_service(group_settings.of(group), settings) for group in all_groups
            }
    secret = CredentialSource(home.root, os.environ).value
    for service in sorted(used):
        # The others need no key here: with `anthropic` the model service searches, and with `off` nobody
        # does.
        if not service.is_asked_by_host:
            continue
        try:
            # Nothing is sent. The request is made with a word, because a query without words is refused.
            web_search.request_of(service, "weather", settings, secret)
        except web_search.SearchFailed as failure:
            return bad("search", f"{service.value}: {failure}", fix=failure.fix or "")
    services = ", ".join(sorted(used - {SearchService.OFF}))
    is_off_for_some = SearchService.OFF in used
    if not services:
        return ok("search", "the web is not searched")
    return ok(
        "search",
        f"the web is searched by {services}{', but not in all groups' if is_off_for_some else ''}",
    )


async def mcp_servers(home: Home) -> DoctorFinding:
    """Check that each MCP server of the owner has its folder, its secret or a valid login."""
    source, now_ms = CredentialSource(home.root, os.environ), SystemClock().now_ms()

    async def rows(tx: Tx) -> list[mcp.McpServerView]:
        """Return the MCP servers, each with whether its secret is set."""
        return await mcp.rows(tx, source.is_usable, home=home.root, now_ms=now_ms)

    servers: list[mcp.McpServerView] = []
    if home.database.exists():
        with suppress(StoreError):  # a damaged database: its own check reports it
            servers = await asyncio.to_thread(read_once, home.database, rows)
    for server in servers:
        if (problem := mcp.problem(server)) is not None:
            text, fix = problem
            return bad("mcp", text, fix=fix)
    return ok("mcp", f"{counted(len(servers), 'server')} of yours" if servers else "no servers of yours")


async def channel(home: Home, messenger: ChannelDescription) -> DoctorFinding:
    """Run a messenger's own checks, then check that somebody is logged in to it, and its connection."""
    name = messenger.name
    # Shown if nobody is logged in: the text of the last check, that of the login, if there are checks.
    own_finding = ChannelFinding(is_problem=False, text=f"Nobody is logged in to {messenger.title}.")
    for check in messenger.checks:
        own_finding = await asyncio.to_thread(check, home.root)
        if own_finding.is_problem:
            return bad(name, own_finding.text, fix="as it says; other channels work without it")
    fields = await connection_status(home, messenger)
    state = str(fields["state"]).replace("_", " ")
    if not fields["account"]:
        return note(name, own_finding.text, fix=messenger.add_command)
    if fields["is_running"] and state != "connected":
        return note(name, f"{fields['account']}: {state}", fix=messenger.shown_status_command)
    # Either it is connected, or Andy does not run, so that there is rightly no connection.
    return ok(name, f"{fields['account']}: {state}")
