"""A messenger whose code breaks at each try ends nothing else of a running host; the owner reads of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes.andy import AndyProcess, until
from tests.support.foreign_channel import installed_channel

pytestmark = pytest.mark.host

BROKEN = """
from orchestrator.channels.description import ChannelDescription

class Pigeon:
    name = "pigeon"
    features = frozenset()
    max_text_chars = max_file_bytes = None

    def owns(self, jid):
        return jid.startswith("pigeon:")

    def status(self):
        return {"state": "disconnected"}

    async def run(self, receive):
        # As a library does with a message of a later version of its messenger.
        raise TypeError("members_only is a required argument")

CHANNEL = ChannelDescription(
    name="pigeon", title="Pigeon", about={"en": "Letters.", "ko": "편지."},
    owns=lambda jid: jid.startswith("pigeon:"), build=lambda context: Pigeon(),
    features=frozenset(), max_text_chars=None, max_file_bytes=None,
)
"""
LINE = "⚠️ The messenger 'pigeon' has stopped working (TypeError: members_only is a required argument)"


def test_a_messenger_that_breaks_at_each_try_ends_nothing_and_is_reported_once(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    andy = AndyProcess(
        tmp_path / "home",
        environment={
            "ANDY_CHANNELS": "pigeon",
            "PYTHONPATH": os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]),
        },
    )
    andy.is_forked = False  # the package is looked for when Python starts
    with installed_channel(packages, BROKEN), andy:
        reported = "SELECT text FROM outbox WHERE text LIKE '%has stopped working%'"
        (notice,) = until(lambda: andy.rows(reported), what="the owner is notified")
        assert notice["text"].startswith(LINE)
        assert "andy channels remove pigeon" in notice["text"]
        failures = until(
            lambda: [one for one in andy.logged() if one["event"] == "loop.restarts" and one["failures"] > 4],
            what="it is tried again",
        )
        assert {one["loop"] for one in failures} == {"channel:pigeon"}
        assert andy.say("add milk to the shopping list")["outcome"] == "answered"
        assert len(andy.rows(reported)) == 1
        assert andy.terminate() == 0
