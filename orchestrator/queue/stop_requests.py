"""Stop what a chat waits for, when the person who asked for it, or one above them, says so in the chat.

It needs no model: `@Andy stop`, `never mind`, `그만`, `/stop`, or ✋ under the question. In one transaction
the turn ends as failed and so does its run. From then on the container's token opens nothing, its frames
count no more, and a command that names the turn is refused; after the commit the container is killed. A host
that dies in between finds a container whose run has ended at its next start, and removes it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from agent_runner.wire.unicode_forms import normalized
from orchestrator.base.tables import short
from orchestrator.domain.values import Group, Inbound, Message, Role, RunId, Turn, TurnKind, TurnState
from orchestrator.groups import people, roles
from orchestrator.groups.host_context import HostContext
from orchestrator.store import messages, notice_claims, outbox, runs, tool_calls, turn_outages, turns
from orchestrator.store.database import Tx, after_commit

COMMAND = "/stop"
STOPPED_RUN = "stopped"
"""The store has this word for the end of a run whose turn was stopped in the chat."""
REASON = "it was stopped in the chat."
MAX_ASKERS, MAX_NAMES, MAX_NAME_CHARS = 200, 3, 40
_UNSEEN = re.compile("[\u200b-\u200f\u2060-\u2064\ufe0e\ufe0f\ufeff\U0001f3fb-\U0001f3ff]")
"""Characters that show nothing by themselves: of no width, or the look and the colour of an emoji."""
_SIGNS = frozenset("✋🖐🛑⛔🚫❌✖⏹")
_ENGLISH = re.compile(
    r"(?:(?:ok|okay|please|pls|no|hey) )*"
    r"(?:stop(?: stop)*(?: it| that| this)?|halt|abort|never ?mind(?: that| it)?|nvm"
    r"|forget (?:it|that|about it))"
    r"(?: (?:please|pls|now|thanks|thank you))*"
)
_KOREAN = re.compile(
    r"(?:이제|잠깐|제발|아니야?)?(?:좀)?(?:그만|멈춰|멈추|중지|중단|관둬|됐으니그만|하지마|신경쓰지마)(?:좀)?"
    r"(?:해|둬|두|하자|하)?(?:줘요?|요|세요|주세요|라)?[\u116e\u1172]*"
)
"""It is matched without spaces, which people set as they like; the last letters are how they cry."""
_CALL_AT_END = re.compile(r"[ ,]+@\S+$")
_HANGUL = re.compile("[ㄱ-ㅎㅏ-ㅣ가-힣]")
_FILE = ("change to a file", "changes to files", "파일 변경 {n}번")
_EFFECTS = {
    "Bash": ("command", "commands", "명령 {n}번"),
    **dict.fromkeys(("Write", "Edit", "MultiEdit", "NotebookEdit"), _FILE),
    "mcp__andy__send_message": ("sent message", "sent messages", "보낸 메시지 {n}개"),
    "mcp__andy__send_file": ("sent file", "sent files", "보낸 파일 {n}개"),
}
"""The words for one call, for several, and in Korean, by the tool that was called."""
_OTHER = ("call of another tool", "calls of other tools", "다른 도구 호출 {n}번")
_READS = re.compile(
    r"Read|Glob|Grep|LS|TodoWrite|WebSearch|WebFetch|Task|ToolSearch|BashOutput"
    r"|mcp__(?:andy|dashboard|context)__(?:(?:list|show|search|get)_\w+|web_search)"
)
"""Tools that leave nothing behind which somebody would want to know of."""

StopRun = Callable[[RunId, str], None]


@dataclass(frozen=True, slots=True)
class _OpenTurn:
    """A turn that waits or runs, and the messages that asked in it."""

    turn: Turn
    asked: tuple[Message, ...]


class StopRequests:
    """Stops the turn of a chat whose message says so."""

    def __init__(self, host: HostContext, *, stop_run: StopRun) -> None:
        """`stop_run(run_id, reason)` has the container of a run be killed; it is called after the commit."""
        self._host = host
        self._stop_run = stop_run

    async def answer(
        self, tx: Tx, group: Group, message: Inbound, text: str, *, is_asked: bool, role: Role
    ) -> str | None:
        """Stop what a message says to stop and return the reply; None of any other message.

        `text` is the message without the trigger, or the emoji of a reaction. `is_asked`: it is for Andy.
        `role` is that of its sender.
        """
        is_command = text.strip().lower() == COMMAND
        if not is_stop(text) or not (is_asked or message.reaction or is_command):
            return None
        meant = await self._meant(tx, group, message)
        is_korean = _HANGUL.search(text) is not None
        if meant is None:
            return "No question of this chat is being worked on." if is_command and is_asked else None
        askers = await people.roles_in(tx, group, meant.asked)
        is_only_asker = await people.asked_alone(tx, meant.asked, message)
        if not roles.speaks_for(role, askers, is_only_asker=is_only_asker):
            # Nobody has to be told so whose words may have been for others: a sign, or another bot's `/stop`.
            return _only(meant, is_korean=is_korean) if is_asked else None
        done = Counter(one.tool for one in await tool_calls.of_turn(tx, meant.turn.id))
        await self._stop(tx, meant.turn)
        return reply(done, has_begun=meant.turn.state is TurnState.RUNNING, is_korean=is_korean)

    async def _meant(self, tx: Tx, group: Group, message: Inbound) -> _OpenTurn | None:
        """Return the open chat turn that a message means, or None.

        Under a question, or as a reply to one, it means the turn of that question. Else it means what its
        sender asked alone: what runs, or what waits where nothing of theirs runs. Else what runs for others,
        which the owner may stop.
        """
        found = [
            _OpenTurn(one, tuple(asked))
            for one in await turns.unsettled_of(tx, group.folder)
            if one.kind is TurnKind.CHAT
            and one.chat_jid == message.chat_jid
            and (asked := await messages.requests_of(tx, one.id, limit=MAX_ASKERS))
        ]
        if message.quote is not None:
            under = await messages.find(tx, message.chat_jid, message.quote.message_id)
            pointed = [one for one in found if under in one.asked]
            if pointed:
                return pointed[0]
        if message.reaction:
            return None
        running = [one for one in found if one.turn.state is TurnState.RUNNING]
        own = [one for one in found if await people.asked_alone(tx, one.asked, message)]
        return next(iter([one for one in running if one in own] + own + running), None)

    async def _stop(self, tx: Tx, turn: Turn) -> None:
        now_ms, reason = self._host.clock.now_ms(), REASON
        await outbox.drop_held(tx, turn.id)
        await notice_claims.release(tx, turn, now_ms=now_ms)
        await turns.settle(tx, turn.id, TurnState.FAILED, reason=reason, now_ms=now_ms, is_own_fault=False)
        await turn_outages.note_stop(tx, turn.id, code=turn_outages.IN_CHAT, reason=reason, now_ms=now_ms)
        if turn.state is TurnState.RUNNING and turn.run_id is not None:
            await runs.end(tx, turn.run_id, kind=STOPPED_RUN, detail=reason, now_ms=now_ms)
            after_commit(tx, partial(self._stop_run, turn.run_id, reason))
        after_commit(tx, partial(self._announce, turn, reason))

    def _announce(self, turn: Turn, reason: str) -> None:
        self._host.bus.publish("turn.failed", group=turn.folder, turn=turn.id, reason=reason)
        self._host.wakeups.lanes.set()


def is_stop(text: str) -> bool:
    """Return whether a whole message asks to stop; a sentence that only has the word in it does not. Pure."""
    seen = _UNSEEN.sub("", normalized("NFKC", text.strip()))
    words = " ".join(_CALL_AT_END.sub("", seen).replace(",", " ").replace("-", " ").lower().split())
    words = words.strip(" .!~…。")
    if not words:
        return False
    is_said = _ENGLISH.fullmatch(words) or _KOREAN.fullmatch(words.replace(" ", ""))
    return words == COMMAND or set(words) <= _SIGNS or is_said is not None


def reply(done: Counter[str], *, has_begun: bool, is_korean: bool) -> str:
    """Return what the chat reads: that it stopped, and the calls of tools that were `done` before. Pure.

    Calls that failed or had not ended are among them: they may have done something.
    """
    if not has_begun:
        return "알겠어요, 시작하지 않을게요." if is_korean else "OK, I will not begin with it."
    counts: Counter[tuple[str, str, str]] = Counter()
    for tool, count in done.items():
        if not _READS.fullmatch(tool):
            counts[_EFFECTS.get(tool, _OTHER)] += count
    if is_korean:
        parts = ", ".join(korean.format(n=count) for (_, _, korean), count in counts.items())
        kept = f"그 전에 한 일은 그대로 있어요: {parts}." if parts else "그 전에 바꾼 것은 없는 것 같아요."
        return f"멈췄어요. {kept}"
    parts = ", ".join(f"{count} {one if count == 1 else many}" for (one, many, _), count in counts.items())
    kept = f"What I had done by then stays: {parts}." if parts else "As far as I know I had changed nothing."
    return f"Stopped. {kept}"


def _only(meant: _OpenTurn, *, is_korean: bool) -> str:
    names = sorted({one.sender_name for one in meant.asked})
    who = ", ".join(short(one, MAX_NAME_CHARS) for one in names[:MAX_NAMES])
    if is_korean:
        return f"이것은 부탁한 사람({who})이나 주인만 멈출 수 있어요."
    return f"Only the one who asked ({who}) or the owner can stop this."
