"""Describe Matrix, which is logged in to with an account of Andy's own."""

from __future__ import annotations

import re

from orchestrator.channels.description import ChannelDescription, LoginQuestion, deferred
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import ChatJid

PREFIX = "matrix:"
FOLDER = "data/channels/matrix"
LOGIN = f"{FOLDER}/login.json"
MAX_TEXT_CHARS = 8_000
"""Characters of a message: Matrix has 64 KiB for its text, which is sent twice: plain and formatted."""
_ROOM = re.compile(r"![^\s:/?#]{1,200}(:[^\s/?#]{1,200})?")
"""`!id:server`, and `!id` alone since room version 12."""


def owns(jid: ChatJid) -> bool:
    """Return whether `jid` is a room: `matrix:!id:server`."""
    return jid.startswith(PREFIX) and _ROOM.fullmatch(jid, len(PREFIX)) is not None


CHANNEL = ChannelDescription(
    name="matrix",
    title="Matrix",
    about={
        "en": "Rooms of Matrix (Element and others), with an account of Andy's own on any homeserver.",
        "ko": "Matrix(Element 등)의 방입니다. 아무 홈서버에나 만든 Andy 자신의 계정을 씁니다.",
    },
    owns=owns,
    prefix=PREFIX,
    build=deferred("orchestrator.channels.matrix.channel:MatrixChannel"),
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
    log_in=deferred("orchestrator.channels.matrix.login:log_in"),
    log_out=deferred("orchestrator.channels.matrix.login:log_out"),
    account=deferred("orchestrator.channels.matrix.doctor_checks:account"),
    status_file=f"{FOLDER}/condition.json",
    secret_files=(LOGIN,),
    checks=(
        deferred("orchestrator.channels.matrix.doctor_checks:check_library"),
        deferred("orchestrator.channels.matrix.doctor_checks:check_login"),
    ),
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
