"""Describe Telegram, where Andy is a bot that its owner has made."""

from __future__ import annotations

import re

from orchestrator.channels.description import ChannelDescription, LoginQuestion, deferred
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import ChatJid

PREFIX = "tg:"
FOLDER = "data/channels/telegram"
LOGIN = f"{FOLDER}/login.json"
MAX_TEXT_CHARS = 4_096
MAX_FILE_BYTES = 50 * 1000**2
"""The largest file, in bytes, that a bot may send. It may fetch 20 MB (`incoming.MAX_FETCH_BYTES`)."""
_CHAT = re.compile(r"tg:-?[0-9]{1,20}")


def owns(jid: ChatJid) -> bool:
    """Return whether `jid` is a chat: `tg:-1001234567890`."""
    return _CHAT.fullmatch(jid) is not None


CHANNEL = ChannelDescription(
    name="telegram",
    title="Telegram",
    about={
        "en": "Chats and groups of Telegram, with a bot of your own from @BotFather.",
        "ko": "텔레그램의 대화와 그룹입니다. @BotFather에서 만든 내 봇을 씁니다.",
    },
    owns=owns,
    prefix=PREFIX,
    build=deferred("orchestrator.channels.telegram.channel:TelegramChannel"),
    features=frozenset(Feature) - {Feature.IDEMPOTENT, Feature.DELETIONS, Feature.READ_RECEIPTS},
    max_text_chars=MAX_TEXT_CHARS,
    max_file_bytes=MAX_FILE_BYTES,
    media=("image", "audio", "video"),
    extra="telegram",
    library="telegram",
    questions=(
        LoginQuestion(name="owner", text="Your own numeric user id; @userinfobot tells it", default="0"),
        LoginQuestion(
            name="server", text="The server of the Bot API", default="https://api.telegram.org", is_rare=True
        ),
        LoginQuestion(name="token", text="The bot's token from @BotFather", is_secret=True),
    ),
    log_in=deferred("orchestrator.channels.telegram.login:log_in"),
    log_out=deferred("orchestrator.channels.telegram.login:log_out"),
    account=deferred("orchestrator.channels.telegram.doctor_checks:account"),
    status_file=f"{FOLDER}/condition.json",
    secret_files=(LOGIN,),
    checks=(
        deferred("orchestrator.channels.telegram.doctor_checks:check_library"),
        deferred("orchestrator.channels.telegram.doctor_checks:check_login"),
    ),
    advice={
        "logged_out": {
            "en": "Telegram does not take the bot's token any more ({reason}): 'andy channels add telegram'.",
            "ko": "텔레그램이 봇 토큰을 더는 받지 않습니다({reason}): 'andy channels add telegram'",
        },
        "disconnected": {
            "en": "Telegram cannot be reached ({reason}). Andy tries again by himself.",
            "ko": "텔레그램에 연결할 수 없습니다({reason}). Andy가 저절로 다시 시도합니다.",
        },
    },
)
