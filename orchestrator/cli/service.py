"""`andy service`: Andy as a unit of systemd, which starts him at boot and restarts him on failure."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

from cyclopts import App, Parameter

from orchestrator.cli.client import running_status
from orchestrator.cli.options import HomeOption, JsonOption, show
from orchestrator.domain.errors import AndyError, BadRequest, NotRunning, Starting

service_app = App(name="service")

SystemOption = Annotated[
    bool,
    Parameter(
        name="--system", negative="", help="Use a unit of the machine, which needs root, instead of your own."
    ),
]
NameOption = Annotated[str, Parameter(help="The unit's name; a second home needs another name.")]
UNIT = """\
# Written by 'andy service install' for {home}
[Unit]
Description=Andy, a personal assistant in group chats ({described})
{after}# As often as it takes: Docker, the port or the network may be late.
StartLimitIntervalSec=0

[Service]
Type=exec
{user}ExecStart={command}
WorkingDirectory={home_path}
{environment}Restart=on-failure
RestartSec=10
# Turns have 30 s to end. Only the host gets the signal, and ends the processes that it started itself.
KillMode=mixed
TimeoutStopSec=75
{limits}
[Install]
WantedBy={wanted_by}
"""
COMMON_LIMITS = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
# Landlock is what the program that listens to voice notes fences itself in with.
SystemCallFilter=@system-service landlock_create_ruleset landlock_add_rule landlock_restrict_self
SystemCallErrorNumber=EPERM
TasksMax=4096
"""
"""Limits that any user's systemd can set: they need neither privileges nor namespaces, which a machine may
refuse to users.
"""
NAMESPACE_LIMITS = """\
ProtectSystem=strict
ProtectHome=read-only
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
AmbientCapabilities=
"""
"""Lines that need namespaces. `strict` alone leaves `/home` and `/root` writable.

Docker's socket can be reached: connecting writes to no file.
"""
OWN_NAMESPACE = "PrivateUsers=yes\n"
"""The line that lets the systemd of an ordinary user apply `NAMESPACE_LIMITS`.

The user's groups, such as Docker's, stay in force.
"""
ROOT_CAPABILITIES = (
    "CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_KILL CAP_NET_ADMIN CAP_NET_RAW CAP_SETGID"
    " CAP_SETUID"
)
"""Capabilities of a unit that root runs: for the firewall's rule, and folders of the agents' user."""
SHARED_FOLDERS = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  # a private one would hide a home below it
SYSTEMD = Path("/run/systemd/system")
"""A folder that exists only if systemd runs the machine."""
INHERITED_VARIABLES = ("DOCKER_HOST", "XDG_CONFIG_HOME")
"""Variables of the shell that the unit needs too: the addresses of Docker and of the owner's lists."""
NO_NAMESPACES_HINT = (
    "This machine lets no user make namespaces, so the unit may write wherever you may:"
    " 'sudo andy service install --system' makes one that writes to its home alone."
)
SHOWN_PROPERTIES = ("LoadState", "UnitFileState", "ActiveState", "SubState", "MainPID", "Result", "NRestarts")


class ServiceError(AndyError):
    """A command of systemd failed; the text has its output."""


class ServiceStatus(TypedDict):
    """The state of a unit in systemd, as `--json` prints it."""

    unit: str
    file: str
    """The path of the unit's file."""
    installed: bool
    enabled: bool
    """Whether systemd starts the unit with the machine."""
    active: bool
    state: str
    """The state in systemd's words, such as `active (running)`."""
    pid: int | None
    """The process of a running unit; None if it does not run."""
    restarts: int
    lingers: bool | None
    """Whether this user's units run without a login; None for a unit of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUnit:
    """A unit file of one home, of this user or of the machine."""

    name: str
    home: Path
    is_system: bool

    @property
    def file_name(self) -> str:
        """The name of the unit's file."""
        return f"{self.name}.service"

    @property
    def path(self) -> Path:
        """The path of the unit's file."""
        if self.is_system:
            return Path("/etc/systemd/system", self.file_name)
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(config, "systemd", "user", self.file_name)

    def systemctl(self, *arguments: str) -> str:
        """Run systemctl and return its output. Raises `ServiceError` with its error output."""
        return _run("systemctl", *([] if self.is_system else ["--user"]), *arguments)

    def is_of_home(self) -> bool:
        """Return whether the unit's file exists, and 'andy service install' wrote it for this home."""
        return self.path.exists() and f"service install' for {self.home}\n" in self.path.read_text()

    def check_home(self) -> None:
        """Raise `BadRequest` if the unit's file was written for another home, or by somebody else."""
        if self.path.exists() and not self.is_of_home():
            raise BadRequest(f"{self.path} is there already, for another home: choose another --name.")


def render(unit: ServiceUnit, *, runtime: str | None, owner: str | None, has_namespaces: bool = True) -> str:
    """Return the text of the unit file with which systemd runs Andy. Pure, but for the environment.

    `runtime` is a value for `andy up --runtime`; None leaves it to the settings. `owner` is the user that a
    unit of the machine runs as; None for a unit of this user. `has_namespaces` says that systemd can make
    namespaces for the unit.
    """
    command = [sys.executable, "-m", "orchestrator", "up", *(["--runtime", runtime] if runtime else [])]
    passed_on = {name: os.environ[name] for name in INHERITED_VARIABLES if os.environ.get(name)}
    return UNIT.format(
        home=unit.home,
        described=_escape_percent(str(unit.home)),
        home_path=_escape_percent(str(unit.home)),
        command=" ".join(_quote(word, is_command=True) for word in command),
        environment="".join(
            f"Environment={_quote(f'{name}={value}')}\n"
            for name, value in {"ANDY_HOME": str(unit.home), **passed_on}.items()
        ),
        after="Wants=network-online.target\nAfter=network-online.target docker.service\n"
        if unit.is_system
        else "",
        user=f"User={owner}\n" if owner else "",
        limits=_limits(unit, owner, has_namespaces=has_namespaces),
        wanted_by="multi-user.target" if unit.is_system else "default.target",
    )


def _limits(unit: ServiceUnit, owner: str | None, *, has_namespaces: bool) -> str:
    """Return the lines of the unit file that restrict the unit to what Andy needs.

    `owner` is the user that a unit of the machine runs as; None for a unit of this user. `has_namespaces`
    says that systemd can make namespaces for the unit.
    """
    # If root runs Andy, agents have another user id, and must be able to enter folders that he creates. So
    # the mask that closes these to other users is left out.
    umask_line = "" if _is_of_root(owner) else "UMask=0077\n"
    if not has_namespaces:
        return COMMON_LIMITS + umask_line
    # With a `/tmp` of its own, the unit would not see a home below the machine's.
    is_shared = any(unit.home.is_relative_to(folder) for folder in SHARED_FOLDERS)
    return (
        COMMON_LIMITS
        + umask_line
        + _namespace_limits(owner, is_system=unit.is_system)
        + f"ReadWritePaths={_quote(str(unit.home))}\n"
        + ("" if is_shared else "PrivateTmp=yes\n")
    )


def _namespace_limits(owner: str | None, *, is_system: bool) -> str:
    """Return the lines of the unit file that systemd can apply only if it can make namespaces for the unit.

    They restrict the files and capabilities that Andy has; only a unit of an ordinary user's own systemd gets
    a user namespace. `is_system` says that it is a unit of the machine, which runs as the user `owner`. For a
    unit of this process's user, who may be root, `owner` is None.
    """
    is_of_root = _is_of_root(owner)
    # systemd applies the lines to a unit of the machine without a user namespace. A unit of root must not
    # have one: in it, root could give no folder to the agents' user.
    own_namespace = "" if is_system or is_of_root else OWN_NAMESPACE
    return (
        f"{own_namespace}{NAMESPACE_LIMITS}CapabilityBoundingSet={ROOT_CAPABILITIES if is_of_root else ''}\n"
    )


def _is_of_root(owner: str | None) -> bool:
    """Return whether root runs a unit; `owner` is the unit's user, None for a unit of this user."""
    if owner is None:
        return os.geteuid() == 0
    return owner == "root"


def _escape_percent(text: str) -> str:
    """Return a text in which systemd reads each `%` as itself."""
    return text.replace("%", "%%")


def _quote(word: str, *, is_command: bool = False) -> str:
    """Return a word in quotation marks for a line of a unit file.

    systemd gives `%` a meaning, and in a command (`is_command`) also `$`: both are escaped, as are quotation
    marks and backslashes.
    """
    escaped = _escape_percent(word).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped.replace("$", "$$") if is_command else escaped}"'


@service_app.command
def install(
    *,
    system: SystemOption = False,
    name: NameOption = "andy",
    print_only: Annotated[
        bool, Parameter(name="--print", negative="", help="Only show the unit; changes nothing.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Have systemd run Andy: now, whenever the machine starts, and again if he fails.

    If a Docker engine answers now, the unit requires it: while Docker is not up yet after a start of the
    machine, Andy is restarted until it is, and no agent runs outside of a container.

    Example: `andy service install`
    """
    unit = _unit(home, name, is_system=system)
    runtime = asyncio.run(_runtime(home))
    owner, has_namespaces = _owner(unit.home) if system else None, _can_make_namespaces(is_system=system)
    text = render(unit, runtime=runtime, owner=owner, has_namespaces=has_namespaces)
    if print_only:
        print(text, end="")
        return
    _check_systemd()
    unit.check_home()
    asyncio.run(_refuse_other_host(unit, home))
    try:
        unit.path.parent.mkdir(parents=True, exist_ok=True)
        unit.path.write_text(text, encoding="utf-8")
    except OSError as error:
        fix = "run the command with sudo" if system else "fix its permissions"
        raise ServiceError(f"{unit.path} cannot be written ({error.strerror}): {fix}.") from error
    unit.systemctl("daemon-reload")
    unit.systemctl("enable", unit.file_name)
    unit.systemctl("restart", unit.file_name)
    print(f"Andy runs as {unit.file_name}, from {unit.path}. See 'andy service status'.")
    if not has_namespaces:
        print(NO_NAMESPACES_HINT)
    if not system:
        print(_enable_linger())


@service_app.command
def uninstall(*, system: SystemOption = False, name: NameOption = "andy", home: HomeOption = None) -> None:
    """Stop Andy and remove the unit. The home stays.

    Example: `andy service uninstall`
    """
    unit = _unit(home, name, is_system=system)
    _check_systemd()
    if not unit.path.exists():
        raise BadRequest(
            f"There is no {unit.path}: see 'andy service status', with --system for the machine's."
        )
    unit.check_home()
    unit.systemctl("disable", "--now", unit.file_name)
    unit.path.unlink(missing_ok=True)
    unit.systemctl("daemon-reload")
    print(f"{unit.file_name} is removed.")


@service_app.command
def status(
    *,
    system: SystemOption = False,
    name: NameOption = "andy",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show the state of the unit in systemd; 'andy status' shows what Andy does.

    Example: `andy service status`
    """
    unit = _unit(home, name, is_system=system)
    _check_systemd()
    output = unit.systemctl("show", unit.file_name, f"--property={','.join(SHOWN_PROPERTIES)}")
    properties = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    report: ServiceStatus = {
        "unit": unit.file_name,
        "file": str(unit.path),
        "installed": unit.path.exists(),
        "enabled": properties.get("UnitFileState") == "enabled",
        "active": properties.get("ActiveState") == "active",
        "state": f"{properties.get('ActiveState', 'unknown')} ({properties.get('SubState', '')})",
        "pid": int(properties.get("MainPID") or 0) or None,
        "restarts": int(properties.get("NRestarts") or 0),
        "lingers": None if system else _lingers(),
    }
    show(report, _status_lines, as_json=as_json)


def _status_lines(report: ServiceStatus) -> list[str]:
    """Return the state of the unit, as `status` reports it, as lines for people."""
    if not report["installed"]:
        return [f"There is no {report['file']}: 'andy service install' writes it."]
    yes_or_no = {True: "yes", False: "no"}
    lines = [
        f"unit      {report['unit']}, {report['file']}",
        f"state     {report['state']}" + (f", process {report['pid']}" if report["pid"] else ""),
        f"restarts  {report['restarts']}",
        f"at boot   {yes_or_no[report['enabled']]}",
    ]
    if report["lingers"] is not None:
        fix = "" if report["lingers"] else f": '{_linger_command()}' keeps him when nobody is logged in"
        lines.append(f"lingers   {yes_or_no[report['lingers']]}{fix}")
    return lines


def _unit(home: Path | None, name: str, *, is_system: bool) -> ServiceUnit:
    """Return the systemd unit `name` of a home, of the machine (`is_system`) or of this user.

    Raises `BadRequest` for a name, or for the path of a home, that no unit can have.
    """
    from orchestrator.cli.terminal import home_of

    if not (name and name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        raise BadRequest(f"'{name}' is no name of a unit: use letters, digits and dashes.")
    root = home_of(home).root
    if not str(root).isprintable():
        raise BadRequest(f"{root!r} cannot stand in a unit: choose a home with a plain name.")
    return ServiceUnit(name=name, home=root, is_system=is_system)


def _check_systemd() -> None:
    """Raise `ServiceError` if systemd does not run this machine, or if this process is in a container."""
    from orchestrator.compose.self_inspect import own_id

    if own_id() is not None:
        raise ServiceError("Andy is a container here: Docker itself starts him again.")
    if not SYSTEMD.is_dir():
        raise ServiceError(
            "systemd does not run this machine, so there is no service: 'andy up' starts Andy here, and"
            " 'andy service install --print' shows the unit."
        )


async def _refuse_other_host(unit: ServiceUnit, home: Path | None) -> None:
    """Raise `BadRequest` if Andy is up or starting on the unit's home in another process than the unit's.

    `home` is the option `--home` that led to the unit's home.
    """
    from orchestrator.cli import terminal

    properties = unit.systemctl("show", unit.file_name, "--property=ActiveState")
    # The unit runs an Andy already, which `install` restarts.
    if "ActiveState=active" in properties:
        return
    try:
        running_status(terminal.home_of(home))
    except Starting:
        pass
    except NotRunning:
        return
    raise BadRequest(f"Andy is running on {unit.home} already: stop him where he runs, and try again.")


async def _runtime(home: Path | None) -> str | None:
    """Return the runtime that is written into the unit.

    The result is `docker` if the setting is `auto` and an engine answers now. Otherwise it is None: nothing
    is written, and Andy uses the setting.
    """
    from orchestrator.cli import terminal
    from orchestrator.containers.docker import runtime as docker_engine
    from orchestrator.domain.errors import ContainerError

    if terminal.settings_of(terminal.home_of(home)).andy_runtime != "auto":
        return None
    try:
        await docker_engine.probe()
    except ContainerError:
        return None
    return "docker"


def _can_make_namespaces(*, is_system: bool) -> bool:
    """Return whether systemd can make namespaces for a unit, which a machine may refuse to its users.

    For a unit of this user, a unit that does nothing is started to find out. For a unit of the machine it is
    always true, because root may make namespaces. Without systemd it is true as well: the unit can only be
    shown then, as it would be on a machine with systemd.
    """
    if is_system or not SYSTEMD.is_dir():
        return True
    properties = (f"--property={line}" for line in _namespace_limits(None, is_system=False).splitlines())
    try:
        _run("systemd-run", "--user", "--quiet", "--collect", "--wait", *properties, "true")
    except ServiceError:
        return False
    return True


def _owner(home: Path) -> str:
    """Return the name of the user who owns the home; a unit of the machine runs as that user.

    Raises `ServiceError` if this machine does not know the user.
    """
    try:
        return home.owner()
    except (KeyError, OSError) as error:
        raise ServiceError(f"{home} belongs to no user that this machine knows.") from error


def _enable_linger() -> str:
    """Let this user's services run without a login; return a text about whether they do."""
    if not _lingers():
        try:
            _run("loginctl", "enable-linger")
        except ServiceError:
            return f"He ends when you log out. To keep him: {_linger_command()}"
    return "He goes on when you log out, and starts with the machine."


def _lingers() -> bool:
    """Return whether this user's services run without a login."""
    try:
        return "Linger=yes" in _run("loginctl", "show-user", str(os.geteuid()), "--property=Linger")
    except ServiceError:
        return False  # this user has no session, and lingering is off


def _linger_command() -> str:
    """Return the command that lets this user's services run without a login."""
    import getpass

    return f"sudo loginctl enable-linger {shlex.quote(getpass.getuser())}"


def _run(*command: str) -> str:
    """Run a command and return its output. Raises `ServiceError` if it fails."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise ServiceError(f"{command[0]} is missing: this machine has no systemd.") from error
    if result.returncode != 0:
        output = " ".join(result.stderr.split()) or f"it ended with code {result.returncode}"
        raise ServiceError(f"'{shlex.join(command)}' failed: {output}")
    return result.stdout
