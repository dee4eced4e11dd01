"""What most tests stand on: a real database, a clock that is moved, stages around them."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import ssl
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
import structlog
import tzlocal
from hypothesis import HealthCheck, settings

from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.doubles.messages_api import ScriptedMessagesApi
from tests.processes.synapse import PYTHON, Synapse
from tests.support.leftovers import Leftovers
from tests.support.new_databases import new_databases_copied_from, prepare_from_nothing
from tests.support.sharing_out import FilesTogether, place_in_run
from tests.support.shuffling import Shuffling
from tests.support.skips import NEED_ALL, NoSkips
from tests.support.store_harness import StoreHarness
from tests.support.unneeded_files import UnneededFiles

# To rewrite all files of tests takes each process of pytest 10 seconds: once is enough.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# jsonschema needs it for a format that nobody checks here, and it takes more than a second to import.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# tzlocal remembers the first zone that it finds for the life of the process: it must not be one that a test
# has set in TZ.
tzlocal.get_localzone_name()

# How long an example takes says more of the machine than of the code. The same fifty examples are tried each
# time, so what passed once passes again; `make soak` looks for others by the hundred.
settings.register_profile(
    "andy",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", settings.get_profile("andy"), derandomize=False, max_examples=500)
settings.load_profile("andy")

# Where an error is logged, structlog by itself draws its traceback with rich, which takes 20 ms each time.
# Logs go to the own stderr of the process: beside a host, `capsys` captures only what a command prints.
structlog.configure(
    logger_factory=structlog.PrintLoggerFactory(sys.__stderr__),
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ],
)

# Python itself collects after each 700 new objects, which takes a tenth of the time of all tests.
gc.set_threshold(50_000, 10, 10)

# Each HTTP client reads the certificate authorities, also one without TLS, which takes 20 ms each time.
_read_authorities = ssl.create_default_context
_authorities = functools.cache(_read_authorities)
ssl.create_default_context = lambda *purpose, **of: (
    _authorities(*purpose, **of) if of == {"cafile": certifi.where()} else _read_authorities(*purpose, **of)
)

collect_ignore_glob: list[str] = []
_without: list[str] = []

with warnings.catch_warnings():
    # neonize asks `uname` as it is imported and leaves the pipe open: one test at random would be blamed.
    warnings.simplefilter("ignore", ResourceWarning)
    try:
        import neonize  # noqa: F401
    except ImportError as error:
        if NEED_ALL:
            raise
        collect_ignore_glob += ["*/test_whatsapp*", "*/integration/whatsapp/*", "*/test_channel_contract*"]
        _without.append(f"the tests of WhatsApp are left out: {error} (Debian: apt-get install libmagic1)")
    gc.collect()
    for left in subprocess._active[:]:  # type: ignore[attr-defined]
        left.wait()
        left.stdout.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--leftovers", action="store_true", help="fail each test that leaves something behind")
    parser.addoption("--shuffle", metavar="SEED", help="files in random order: a seed, or 'new' for another")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(UnneededFiles(config.option.markexpr), "unneeded-files")
    if config.option.shuffle is not None:
        config.pluginmanager.register(Shuffling(config), "shuffling")
    if config.option.leftovers:
        config.pluginmanager.register(Leftovers(), "leftovers")
    if NEED_ALL:
        config.pluginmanager.register(NoSkips(), "no-skips")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Start the longest files first and tests that share nothing last, also where files are shuffled."""
    yield
    items.sort(key=lambda item: place_in_run(item.path))


def pytest_collection_finish() -> None:
    """Keep the objects of the collected tests out of later garbage collections, which would look at each."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether | None:
    return FilesTogether(config, log) if config.getvalue("dist") == "loadgroup" else None


_left: Counter[str] = Counter()
"""Number of files of tests that this run leaves to `make check`, and number of such tests of other files."""


def pytest_report_header() -> list[str]:
    return _without


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items and "not host" in items[0].config.option.markexpr:
        _left["tests"] += len(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if "not host" in session.config.option.markexpr:
        unneeded = session.config.pluginmanager.getplugin("unneeded-files")
        assert isinstance(unneeded, UnneededFiles)
        if unneeded.left_out:  # where xdist's workers collect, the process that reports them has none
            _left["files"] = len(unneeded.left_out)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = dict(_left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # Each worker of xdist collects all tests and so leaves out the same ones; the controller collects none.
    _left.update(Counter(getattr(node, "workeroutput", {}).get("left", {})) - _left)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left.total():
        rest = f"{_left['files']} files of tests, and {_left['tests']} tests of other files"
        terminalreporter.write_line(f"Left to 'make check': {rest}.")


@pytest.fixture(scope="session")
def homeserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    """A real homeserver of Matrix for all tests of this process: it takes seconds to start."""
    if not PYTHON.exists():
        pytest.skip("no homeserver is installed: make matrix-server")
    with Synapse(tmp_path_factory.mktemp("homeserver")) as server:
        yield server


@pytest.fixture
def api() -> Iterator[ScriptedMessagesApi]:
    """The model's API on loopback, which says what a test scripts."""
    with ScriptedMessagesApi() as api:
        yield api


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "messages.db"


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of the newest version, for tests to copy: migrations take 20 ms and many syncs."""
    path = tmp_path_factory.mktemp("migrated") / "messages.db"
    prepare_from_nothing(path)
    return path


@pytest.fixture(scope="session", autouse=True)
def new_databases(migrated_database: Path) -> Iterator[None]:
    """Copy the migrated database wherever a test of any kind has a new one opened in its own process."""
    with new_databases_copied_from(migrated_database):
        yield


@pytest.fixture
def copied_database(database_path: Path, migrated_database: Path) -> Path:
    database_path.parent.mkdir(parents=True, exist_ok=True)
    if not database_path.exists():  # a test may have made one before
        shutil.copyfile(migrated_database, database_path)
    return database_path


@pytest.fixture
async def database(copied_database: Path) -> AsyncIterator[Database]:
    opened = await Database.open(copied_database)
    yield opened
    await opened.close()


@pytest.fixture
def store_harness(database: Database, clock: FakeClock) -> StoreHarness:
    """No group is registered in it yet."""
    return StoreHarness(database, clock)
