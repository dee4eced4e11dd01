"""The options of `andy up` as they are usually written are read without the library of the command line."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys

import pytest

from orchestrator.cli import host_process
from orchestrator.cli.host_process import plain_options

HOST = """
import ctypes, os
from orchestrator.cli import host_process

prctl = ctypes.CDLL(None).prctl
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
prctl(4, 1, 0, 0, 0)  # a change of user has cleared it

def look():
    print("dumpable", prctl(3, 0, 0, 0, 0), "owner is root", os.stat("/proc/self/mem").st_uid == 0)

async def serve(*_, **__):
    look()
    return False

host_process._serve = serve
look()
host_process.run(None, runtime=None, agent=None, port=None)
"""
"""Starts the host as `andy up` does, as an ordinary user, and looks at itself before and while it serves."""


def test_no_other_process_of_the_user_reads_the_hosts_memory_or_takes_its_sockets():
    """The kernel gives the memory of a process that is not dumpable to root alone."""
    done = subprocess.run([sys.executable, "-c", HOST], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["dumpable 1 owner is root False", "dumpable 0 owner is root True"], (
        done.stderr
    )


class GoneTerminal:
    def write(self, text):
        raise OSError(errno.EIO, "Input/output error")

    def flush(self):
        raise OSError(errno.EIO, "Input/output error")


def test_a_signal_stops_the_host_also_when_its_terminal_is_gone(monkeypatch):
    monkeypatch.setattr(sys, "stderr", GoneTerminal())
    stop = asyncio.Event()

    host_process._stop_or_exit(stop)

    assert stop.is_set()


def test_a_host_whose_terminal_is_gone_starts_and_restarts(monkeypatch):
    async def serve(*_, **__):
        return True

    programs = []
    monkeypatch.setattr(host_process, "_serve", serve)
    monkeypatch.setattr(host_process, "share_one_arena", lambda: None)
    monkeypatch.setattr(host_process, "hide_memory", lambda: None)
    monkeypatch.setattr(os, "execv", lambda program, _: programs.append(program))
    monkeypatch.setattr(sys, "stderr", GoneTerminal())

    host_process.run(None, runtime=None, agent=None, port=None)

    assert programs == [sys.executable]


def test_options_are_read_in_either_form():
    assert plain_options([]) == {}
    assert plain_options(
        ["--home", "/srv/andy home", "--runtime=docker", "--agent", "offline", "--port=0"]
    ) == {
        "--home": "/srv/andy home",
        "--runtime": "docker",
        "--agent": "offline",
        "--port": "0",
    }


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "-h",
        "--port",
        "--port=",
        "--port many",
        "--port 123456",
        "--port -1",
        "--runtime podman",
        "--home --port",
        "--home=",
        "--home /srv/안디",
        "--homes /srv",
        "--port 1 --port 2",
        "extra",
        "= x",
        "--no-port",
    ],
)
def test_anything_else_is_for_the_command_line_to_judge(line):
    assert plain_options(line.split()) is None
