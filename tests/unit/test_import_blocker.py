"""What the host does without, for good or until somebody needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orchestrator.base.import_blocker import without


def test_a_module_is_as_if_not_installed_inside_the_block_alone(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)

    with without("colorsys"), pytest.raises(ImportError):
        import colorsys
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0)


def test_a_module_that_is_loaded_already_stays(monkeypatch):
    with without("json"):
        import json

    assert json is sys.modules["json"]


@pytest.mark.slow
def test_what_the_host_uses_can_do_without_rich():
    script = """
import sys
from orchestrator.base.import_blocker import without
with without("rich"):
    import httpx, structlog
from orchestrator.base import logging
import orchestrator.app, orchestrator.proxies.model.upstream_client
logging.configure("info")
assert "rich.console" not in sys.modules
import rich.console
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().exception("broke")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_a_start_loads_nothing_that_the_first_message_does_not_need():
    later = {
        "cyclopts", "docker", "httpx", "jinja2", "prometheus_client", "regex", "segno", "tiktoken",
        "orchestrator.web.api.lists", "orchestrator.web.api.openapi", "orchestrator.web.console.app",
        "orchestrator.containers.image.build", "orchestrator.proxies.model.upstream_client",
        "orchestrator.channels.whatsapp.channel",
    }  # fmt: skip
    script = """
import sys
from orchestrator.base.import_blocker import without
with without("rich"):
    import structlog
from orchestrator.cli import exit_codes, host_process
import orchestrator.app, orchestrator.web.api.routes, orchestrator.web.app, orchestrator.web.console.sessions
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "orchestrator.app" in done.stdout.split()
    assert later & set(done.stdout.split()) == set()


@pytest.mark.parametrize(
    "load",
    ["orchestrator.containers.docker.client.load_library", "orchestrator.channels.whatsapp.library.load"],
)
def test_a_library_is_loaded_without_what_nobody_needs_of_it(load):
    module = load.rpartition(".")[0]
    script = f"import sys, {module}; {load}(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "requests" in done.stdout.split()
    assert {"chardet", "charset_normalizer", "pygments", "rich"} & set(done.stdout.split()) == set()
    assert done.stderr == ""
