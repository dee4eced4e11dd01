"""Describe the WhatsApp channel: its features, texts, files and checks. Its module loads only when needed."""

from __future__ import annotations

from orchestrator.channels.description import ChannelDescription, deferred
from orchestrator.channels.whatsapp import addresses
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import ChatJid

MAX_TEXT_CHARS = 4_000
"""Characters of the longest message that is sent, including the assistant's name in front of it."""
LOGIN = "store/whatsapp.db"
"""The path of the library's database within the home. It contains the login and its keys."""


def owns(jid: ChatJid) -> bool:
    """Return whether `jid` is an address of a WhatsApp chat in its usual form, without a device."""
    return str(addresses.parse(jid)) == jid


CHANNEL = ChannelDescription(
    name="whatsapp",
    title="WhatsApp",
    about={
        "en": "Groups and chats of a WhatsApp account; Andy becomes a linked device of a phone.",
        "ko": "WhatsApp 계정의 그룹과 대화입니다. Andy는 휴대전화의 '연결된 기기'가 됩니다.",
    },
    library="neonize",
    owns=owns,
    build=deferred("orchestrator.channels.whatsapp.channel:WhatsAppChannel"),
    features=frozenset(Feature) - {Feature.THREADS},
    max_text_chars=MAX_TEXT_CHARS,
    media=("image", "video", "audio"),
    pair_command="andy whatsapp pair",
    account=deferred("orchestrator.channels.whatsapp.doctor_checks:account"),
    status_command="andy whatsapp status",
    status_file="data/whatsapp/condition.json",
    secret_files=(LOGIN,),
    checks=(
        deferred("orchestrator.channels.whatsapp.doctor_checks:check_library"),
        deferred("orchestrator.channels.whatsapp.doctor_checks:check_login"),
    ),
    advice={
        "logged_out": {
            "en": "WhatsApp logged this device out ({reason}): pair it with the phone again.",
            "ko": "WhatsApp이 이 기기를 로그아웃시켰습니다({reason}). 휴대전화와 다시 연결하세요.",
        },
        "banned": {
            "en": "WhatsApp has banned this account for a while ({reason}): nothing is sent until the ban is"
            " over. Write less, and to fewer people.",
            "ko": "WhatsApp이 이 계정을 당분간 차단했습니다({reason}). 풀릴 때까지 아무것도 보내지 않습니다."
            " 덜 쓰고 적은 사람에게 쓰세요.",
        },
        "replaced": {
            "en": "WhatsApp is in use elsewhere with this login ({reason}): stop the other one.",
            "ko": "이 로그인을 다른 곳에서 쓰고 있습니다({reason}). 그쪽을 멈추세요.",
        },
        "outdated": {
            "en": "WhatsApp refuses this version of its library ({reason}): upgrade Andy"
            " (pip install --upgrade neonize).",
            "ko": "WhatsApp이 이 버전의 라이브러리를 거절합니다({reason})."
            " Andy를 업그레이드하세요(pip install --upgrade neonize).",
        },
        "disconnected": {
            "en": "WhatsApp is not connected ({reason}). Andy tries again by himself.",
            "ko": "WhatsApp에 연결되어 있지 않습니다({reason}). Andy가 저절로 다시 시도합니다.",
        },
    },
)
