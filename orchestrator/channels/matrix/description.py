"""Describe Matrix, which is logged in to with an account of Andy's own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.channels.description import ChannelDescription, ChannelFinding, LoginQuestion
from orchestrator.domain.errors import ChannelDown
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.values import ChatJid

if TYPE_CHECKING:
    from orchestrator.channels.context import ChannelContext

PREFIX = "matrix:"
FOLDER = "data/channels/matrix"
LOGIN = f"{FOLDER}/login.json"
MAX_TEXT_CHARS = 8_000
"""A message of Matrix has 64 KiB for its text, twice: plain, and with its marks."""
_ROOM = re.compile(r"![^\s:/?#]{1,200}(:[^\s/?#]{1,200})?")
"""`!id:server`, and `!id` alone since room version 12."""


def owns(jid: ChatJid) -> bool:
    """Return whether `jid` is a room: `matrix:!id:server`."""
    return jid.startswith(PREFIX) and _ROOM.fullmatch(jid, len(PREFIX)) is not None


def build(context: ChannelContext) -> Channel:
    from orchestrator.channels.matrix.channel import MatrixChannel

    return MatrixChannel(context)


def account(home: Path) -> str:
    """Return the account that is logged in, or an empty text. Blocks. Raises `ChannelDown`."""
    path = home / LOGIN
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["user_id"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChannelDown(f"The Matrix login {path} cannot be read: 'andy channels add matrix'.") from error


async def log_in(home: Path, answers: Mapping[str, str]) -> str:
    from orchestrator.channels.matrix import login

    return await login.log_in(home, answers)


async def log_out(home: Path) -> str:
    from orchestrator.channels.matrix import login

    return await login.log_out(home)


def _check_library(home: Path) -> ChannelFinding:
    del home
    try:
        import nio
    except ImportError:
        return ChannelFinding(is_problem=True, text=CHANNEL.missing_library)
    if not nio.crypto.ENCRYPTION_ENABLED:
        text = "Encrypted rooms cannot be read: pip install 'matrix-nio[e2e]'. Others work."
        return ChannelFinding(is_problem=True, text=text)
    return ChannelFinding(is_problem=False, text="Nobody is logged in to Matrix.")


def _check_login(home: Path) -> ChannelFinding:
    try:
        found = account(home)
    except ChannelDown as error:
        return ChannelFinding(is_problem=True, text=str(error))
    text = f"Logged in as {found}." if found else "Nobody is logged in to Matrix."
    return ChannelFinding(is_problem=False, text=text)


CHANNEL = ChannelDescription(
    name="matrix",
    title="Matrix",
    about={
        "en": "Rooms of Matrix (Element and others), with an account of Andy's own on any homeserver.",
        "ko": "Matrix(Element 등)의 방입니다. 아무 홈서버에나 만든 Andy 자신의 계정을 씁니다.",
    },
    owns=owns,
    prefix=PREFIX,
    build=build,
    features=frozenset(Feature),
    max_text_chars=MAX_TEXT_CHARS,
    media=("image", "audio", "video"),
    extra="matrix",
    library="nio",
    questions=(
        LoginQuestion(name="homeserver", text="The homeserver", default="https://matrix.org"),
        LoginQuestion(name="user", text="Andy's own account, such as @andy:matrix.org"),
        LoginQuestion(name="owner", text="Your account, whose invitations are accepted"),
        LoginQuestion(name="password", text="The password of Andy's account", is_secret=True),
    ),
    log_in=log_in,
    log_out=log_out,
    account=account,
    status_file=f"{FOLDER}/condition.json",
    secret_files=(LOGIN,),
    checks=(_check_library, _check_login),
    advice={
        "logged_out": {
            "en": "The homeserver has ended the login ({reason}): 'andy channels add matrix'.",
            "ko": "홈서버가 로그인을 끝냈습니다({reason}). 'andy channels add matrix'를 실행하세요.",
        },
        "disconnected": {
            "en": "The homeserver cannot be reached ({reason}). Andy tries again by himself.",
            "ko": "홈서버에 연결할 수 없습니다({reason}). Andy가 저절로 다시 시도합니다.",
        },
    },
)
