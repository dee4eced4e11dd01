"""Install a package with a channel of its own, as somebody else might write it, on the import path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = """
from orchestrator.channels.description import ChannelDescription, ChannelFinding, LoginQuestion
from orchestrator.domain.errors import ChannelRefused
from orchestrator.domain.protocols import Feature

def build(context):
    import a_library_that_is_missing

async def log_in(home, answers):
    if answers["password"] != "secret":
        raise ChannelRefused("The pigeons do not know this password.")
    (home / "data" / "channels" / "pigeon").mkdir(parents=True, exist_ok=True)
    (home / "data" / "channels" / "pigeon" / "login").write_text(answers["loft"])
    return f"Logged in at {answers['loft']}."

async def log_out(home):
    (home / "data" / "channels" / "pigeon" / "login").unlink(missing_ok=True)
    return "The login is deleted."

def account(home):
    path = home / "data" / "channels" / "pigeon" / "login"
    return path.read_text() if path.exists() else ""

def check(home):
    is_ill = (home / "ill").exists()
    return ChannelFinding(is_problem=is_ill, text="The pigeon is ill: feed it." if is_ill else "Well.")

CHANNEL = ChannelDescription(
    name="pigeon",
    title="Pigeon",
    about={"en": "Letters on wings.", "ko": "날개 달린 편지."},
    owns=lambda jid: jid.startswith("pigeon:"),
    build=build,
    features=frozenset({Feature.TYPING}),
    max_text_chars=160,
    max_file_bytes=10,
    questions=(
        LoginQuestion(name="loft", text="Which loft", default="home"),
        LoginQuestion(name="password", text="Password", is_secret=True),
    ),
    log_in=log_in,
    log_out=log_out,
    account=account,
    secret_files=("data/channels/pigeon/login",),
    checks=(check,),
)
"""


@contextmanager
def installed_channel(folder: Path, source: str = SOURCE) -> Iterator[None]:
    """Have the package `pigeons` with its entry point installed; take it out again."""
    (folder / "pigeons.py").write_text(source)
    info = folder / "pigeons-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeons\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[andy.channels]\npigeon = pigeons:CHANNEL\n")
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("pigeons", None)
