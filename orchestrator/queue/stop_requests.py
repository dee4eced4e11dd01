"""Stop a chat's turn when the person who asked for it, or somebody with more rights, says so in the chat.

No model is needed: `@Andy stop`, `never mind`, `그만`, `/stop`, or ✋ under the question. In one
transaction the turn ends as failed and its run ends. From then on the container's token is refused, its
frames are ignored, and a command that names the turn is refused; after the commit the container is
killed. If the host dies in between, its next start finds a container whose run has ended, and removes
it.
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
from orchestrator.store.conversation import messages, outbox
from orchestrator.store.database import Tx, after_commit
from orchestrator.store.notices import claims as notice_claims
from orchestrator.store.runs import runs, tool_calls, turn_outages, turns

COMMAND = "/stop"
STOPPED_RUN = "stopped"
"""The stored end kind of a run whose turn was stopped in the chat."""
REASON = "it was stopped in the chat."
MAX_ASKERS, MAX_NAMES, MAX_NAME_CHARS = 200, 3, 40
MAX_CHARS = 1_000
"""Most characters of a request to stop: a longer text is not looked through, which would take long."""
_UNSEEN = re.compile("[\u200b-\u200f\u2060-\u2064\ufe0e\ufe0f\ufeff\U0001f3fb-\U0001f3ff]")
"""Characters that are invisible by themselves: of no width, or selecting an emoji's look and colour."""
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
"""Matched without spaces, which people type as they like. The last letters are Korean signs of crying."""
_CALL_AT_END = re.compile(r"[ ,]+@\S+$")
_HANGUL = re.compile("[ㄱ-ㅎㅏ-ㅣ가-힣]")
_FILE_CHANGE = ("change to a file", "changes to files", "파일 변경 {n}번")
_EFFECTS = {
    "Bash": ("command", "commands", "명령 {n}번"),
    **dict.fromkeys(("Write", "Edit", "MultiEdit", "NotebookEdit"), _FILE_CHANGE),
    "mcp__andy__send_message": ("sent message", "sent messages", "보낸 메시지 {n}개"),
    "mcp__andy__send_file": ("sent file", "sent files", "보낸 파일 {n}개"),
}
"""For each tool: its call in the singular, in the plural, and in Korean."""
_OTHER = ("call of another tool", "calls of other tools", "다른 도구 호출 {n}번")
_READS = re.compile(
    r"Read|Glob|Grep|LS|TodoWrite|WebSearch|WebFetch|Task|ToolSearch|BashOutput"
    r"|mcp__(?:andy|dashboard|context)__(?:(?:list|show|search|get)_\w+|web_search)"
)
"""Tools that only read, or leave nothing that the chat needs to know of."""

StopRun = Callable[[RunId, str], None]


@dataclass(frozen=True, slots=True)
class _OpenTurn:
    """A turn that waits or runs, and the messages that asked for it."""

    turn: Turn
    requests: tuple[Message, ...]


class StopRequests:
    """Stops a chat's turn when a message asks for it."""

    def __init__(self, host: HostContext, *, stop_run: StopRun) -> None:
        """`stop_run(run_id, reason)` kills a container; it is called after the commit."""
        self._host = host
        self._stop_run = stop_run

    async def answer(
        self, tx: Tx, group: Group, message: Inbound, text: str, *, is_asked: bool, role: Role
    ) -> str | None:
        """Stop the turn (a question to the agent) that a message asks to stop, and return the reply.

        The sender may stop a turn in which nobody else asked, or any turn if their role may give commands or
        is above the roles of all who asked. Anybody else gets a refusal if the message is surely for the
        assistant, and a `/stop` for the assistant gets a reply also if there is no turn to stop. None if the
        message asks for no stop, or is left to the agent or to other people.

        Args:
            tx: the transaction.
            group: the group of the chat.
            message: the message.
            text: its text without a call of the assistant, or the emoji of a reaction.
            is_asked: whether the message is for the assistant.
            role: the sender's role.
        """
        is_command = text.strip().lower() == COMMAND
        if not is_stop(text) or not (is_asked or message.reaction or is_command):
            return None
        target = await self._find_target(tx, group, message)
        is_korean = _HANGUL.search(text) is not None
        if target is None:
            # Other words than `/stop` go to the agent, which may have asked something: "never mind" is an
            # answer, too.
            return "No question of this chat is being worked on." if is_command and is_asked else None
        askers = await people.roles_in(tx, group, target.requests)
        is_only_asker = await people.asked_alone(tx, target.requests, message)
        if not roles.speaks_for(role, askers, is_only_asker=is_only_asker):
            # A refusal is sent only to a message that was surely for Andy: a sign, or a `/stop` for another
            # bot, may not be.
            return _refusal_text(target, is_korean=is_korean) if is_asked else None
        calls_by_tool = Counter(call.tool for call in await tool_calls.of_turn(tx, target.turn.id))
        await self._stop(tx, target.turn)
        # An attempt before the present one may have done something, too.
        has_begun = target.turn.state is TurnState.RUNNING or bool(calls_by_tool)
        return reply(calls_by_tool, has_begun=has_begun, is_korean=is_korean)

    async def _find_target(self, tx: Tx, group: Group, message: Inbound) -> _OpenTurn | None:
        """Return the waiting or running turn of its chat that a message refers to; None if there is none.

        A reaction or a reply to a question refers to the turn of that question. Any other message refers to a
        turn in which only its sender asked: the running one, else a waiting one. If there is no such turn, it
        refers to a running turn of others; `answer` decides whether the sender may stop that.
        """
        open_turns = [
            _OpenTurn(turn, tuple(requests))
            for turn in await turns.unsettled_of(tx, group.folder)
            if turn.kind is TurnKind.CHAT
            and turn.chat_jid == message.chat_jid
            and (requests := await messages.requests_of(tx, turn.id, limit=MAX_ASKERS))
        ]
        if message.quote is not None:
            quoted = await messages.find(tx, message.chat_jid, message.quote.message_id)
            turns_of_quoted = [candidate for candidate in open_turns if quoted in candidate.requests]
            if turns_of_quoted:
                return turns_of_quoted[0]
        if message.reaction:
            return None
        running = [candidate for candidate in open_turns if candidate.turn.state is TurnState.RUNNING]
        own = [
            candidate for candidate in open_turns if await people.asked_alone(tx, candidate.requests, message)
        ]
        return next(iter([candidate for candidate in running if candidate in own] + own + running), None)

    async def _stop(self, tx: Tx, turn: Turn) -> None:
        """End a turn as failed; after the commit, kill the container that works on it, and publish the end.

        Messages of the turn that are still held back are deleted. The notices (texts for the agent) that it
        has claimed are released for another turn.
        """
        now_ms, reason = self._host.clock.now_ms(), REASON
        await outbox.drop_held(tx, turn.id)
        await notice_claims.release(tx, turn, now_ms=now_ms)
        await turns.settle(tx, turn.id, TurnState.FAILED, reason=reason, now_ms=now_ms, is_own_fault=False)
        await turn_outages.note_stop(tx, turn.id, code=turn_outages.IN_CHAT, reason=reason, now_ms=now_ms)
        if turn.state is TurnState.RUNNING and turn.run_id is not None:
            await runs.end(tx, turn.run_id, kind=STOPPED_RUN, detail=reason, now_ms=now_ms)
            # Only after the commit: a container must not be killed for a stop that was rolled back.
            after_commit(tx, partial(self._stop_run, turn.run_id, reason))
        after_commit(tx, partial(self._announce, turn, reason))

    def _announce(self, turn: Turn, reason: str) -> None:
        """Publish that a turn was stopped, and wake the queue, which may start the next one."""
        self._host.bus.publish("turn.failed", group=turn.folder, turn=turn.id, reason=reason)
        self._host.wakeups.lanes.set()


def is_stop(text: str) -> bool:
    """Return whether a text, as a whole, asks to stop: in English or Korean, by a sign or as `/stop`. Pure.

    Such a word within a longer sentence is not enough, and neither is a text of more than `MAX_CHARS`.
    """
    if len(text := text.strip()) > MAX_CHARS:
        return False
    visible = _UNSEEN.sub("", normalized("NFKC", text))
    # Without a call of the assistant at the end, as in "stop @Andy".
    phrase = " ".join(_CALL_AT_END.sub("", visible).replace(",", " ").replace("-", " ").lower().split())
    phrase = phrase.strip(" .!~…。")
    if not phrase:
        return False
    is_phrase = _ENGLISH.fullmatch(phrase) or _KOREAN.fullmatch(phrase.replace(" ", ""))
    return phrase == COMMAND or set(phrase) <= _SIGNS or is_phrase is not None


def reply(calls_by_tool: Counter[str], *, has_begun: bool, is_korean: bool) -> str:
    """Return the text for the chat that a turn was stopped, and what it had changed by then. Pure.

    `calls_by_tool` has the number of calls of each tool, including failed and unfinished ones, which may have
    changed something. `has_begun` says whether an agent has begun with the turn.
    """
    if not has_begun:
        return "알겠어요, 시작하지 않을게요." if is_korean else "OK, I will not begin with it."
    # By the words for a kind of change: in the singular, in the plural, in Korean.
    counts: Counter[tuple[str, str, str]] = Counter()
    for tool, count in calls_by_tool.items():
        if not _READS.fullmatch(tool):
            counts[_EFFECTS.get(tool, _OTHER)] += count
    if is_korean:
        parts = ", ".join(korean.format(n=count) for (_, _, korean), count in counts.items())
        effects = f"그 전에 한 일은 그대로 있어요: {parts}." if parts else "그 전에 바꾼 것은 없는 것 같아요."
        return f"멈췄어요. {effects}"
    parts = ", ".join(
        f"{count} {singular if count == 1 else plural}" for (singular, plural, _), count in counts.items()
    )
    effects = (
        f"What I had done by then stays: {parts}." if parts else "As far as I know I had changed nothing."
    )
    return f"Stopped. {effects}"


def _refusal_text(target: _OpenTurn, *, is_korean: bool) -> str:
    """Return the text that says who may stop a turn: those who asked, or the owner.

    At most `MAX_NAMES` of those who asked are named.
    """
    names = sorted({request.sender_name for request in target.requests})
    who = ", ".join(short(name, MAX_NAME_CHARS) for name in names[:MAX_NAMES])
    if is_korean:
        return f"이것은 부탁한 사람({who})이나 주인만 멈출 수 있어요."
    return f"Only the one who asked ({who}) or the owner can stop this."
