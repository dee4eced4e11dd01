"""A program that left the network can open no socket of any kind, and neither can its children."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import socket, subprocess, sys
from orchestrator.channels.voice import no_network

assert no_network.leave_network()
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
    try:
        socket.socket(family)
    except PermissionError:
        print("refused")
child = "import socket; socket.socket()"
print("child", subprocess.run([sys.executable, "-c", child], capture_output=True).returncode)
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="the filter is Linux's")
def test_no_socket_can_be_opened_any_more() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused"] * 3 + ["child", "1"]
