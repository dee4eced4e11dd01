"""What is understood in English: patterns over a whole request, in the order they are tried."""

from __future__ import annotations

import re

from agent_runner.agents.offline import shapes, splitting
from agent_runner.agents.offline.intents import (
    TODO,
    AddGroup,
    AddItems,
    AddTask,
    CancelReminder,
    DropGroup,
    DropTask,
    Echo,
    ListAct,
    NoteToSelf,
    OnList,
    Plain,
    SendFile,
    SetProgress,
    Wake,
    Wish,
)
from agent_runner.agents.offline.rules import Rule, first

_FRAME = re.compile(
    r"^(?:(?:please|hey|ok|okay|(?:can|could|would|will)\s+you)\b[,\s]*)*"
    r"(?P<core>\S.*?)[\s,]*(?:\b(?:please|thanks|thank\s+you))?[\s.!?]*$",
    re.IGNORECASE | re.DOTALL,
)
_TODO = r"(?:to-?\s?dos?|tasks?)"
_OWN = r"(?:(?:the|my|our|a)\s+)?"
_LIST = rf"{_OWN}(?:(?P<todo>{_TODO})(?:\s+list)?|(?P<list>\S.*?)\s+list)"
_SHOW = r"(?:(?:show|list|read|open|see)(?:\s+me)?|what(?:'s|\s+is|\s+are)(?:\s+on|\s+in)?)"
_DONE = r"(?:done|complete|completed|finish|finished|check\s+off|tick\s+off|tick)"
_NUMBER = rf"(?:(?:number|no\.?|item|{_TODO})\s+|#\s*)?"
_EACH = re.compile(r"\s*,\s*(?:and\s+)?", re.IGNORECASE)


def read(text: str) -> Wish | None:
    """Tell what an English request wishes, None when no pattern knows it."""
    if echo := _ECHO.fullmatch(text):
        return Echo(echo["text"])
    frame = _FRAME.match(text)
    if frame is None:
        return None
    whole = text.strip(" \t\n.!?")
    return first(_RULES, frame["core"]) or _time_first(frame["core"]) or first(_RULES, whole)


def _time_first(core: str) -> Wish | None:
    """`in 2 hours remind me to stretch`."""
    lead = shapes.leading(core)
    asked = _REMIND.fullmatch(core[lead.end :].lstrip(" ,")) if lead else None
    if lead is None or asked is None:
        return None
    return splitting.split(f"{core[: lead.end]} {asked['body']}", is_for_all=_is_for_all(asked))


def _remind(match: re.Match[str]) -> Wish:
    return splitting.split(match["body"], is_for_all=_is_for_all(match))


def _is_for_all(match: re.Match[str]) -> bool:
    return (match.groupdict().get("whom") or "").lower() in {"us", "everyone", "everybody", "all"}


def _list_name(match: re.Match[str]) -> str:
    return match.groupdict().get("list") or TODO


def _show(match: re.Match[str]) -> Wish:
    return OnList(ListAct.SHOW, _list_name(match))


def _clear(match: re.Match[str]) -> Wish:
    return OnList(ListAct.CLEAR_DONE, _list_name(match))


def _add(match: re.Match[str]) -> Wish:
    name = _list_name(match)
    items = (match["items"],) if name == TODO else _EACH.split(match["items"])
    return AddItems(tuple(item.strip() for item in items if item.strip()), name)


def _removal(match: re.Match[str]) -> Wish:
    return OnList(ListAct.REMOVE, _list_name(match), match["item"])


def _finish(match: re.Match[str]) -> Wish:
    return OnList(ListAct.FINISH, _list_name(match), match["item"])


def _task(match: re.Match[str]) -> Wish:
    """`by` begins a deadline only where a time follows it: a book by somebody is no deadline."""
    body = match["body"]
    for found in _BY.finditer(body):
        rest = body[found.end() :].strip()
        lead = shapes.leading(rest)
        if lead is not None and lead.end == len(rest) and body[: found.start()].strip():
            return AddTask(body[: found.start()].strip(), rest)
    return AddTask(body)


def _progress(match: re.Match[str]) -> Wish | None:
    pct = int(match["pct"])
    return SetProgress(match["task"].strip(), pct) if pct <= 100 else None


_BY = re.compile(r"\s+(?:by|until|till|due(?:\s+(?:on|by))?)\s+", re.IGNORECASE)
_ECHO = re.compile(r"echo\s+(?P<text>.+)", re.IGNORECASE | re.DOTALL)
_REMIND = re.compile(
    r"remind\s+(?P<whom>me|us|everyone|everybody|all)\b(?P<body>.*)", re.IGNORECASE | re.DOTALL
)
_REMINDER = r"(?:(?:set|create|make|add)\s+)?(?:a\s+|an\s+)?(?:new\s+)?(?:reminder|alarm)\b(?:\s+for\b|\s*:)?"
_NEXT_TIME = r"(?:for|until)\s+(?:the\s+)?next\s+(?:time|turn|conversation)"
_NOTE_FIRST = (
    rf"(?:(?:leave\s+(?:a\s+)?)?note\s+to\s+(?:self|yourself)\s*[:,]?"
    rf"|remember\s+{_NEXT_TIME}\s*[:,]?(?:\s+that\b)?)\s+(?P<note>\S.*)"
)
_NOTE_LAST = rf"remember\s+(?:that\s+)?(?P<note>\S.*?)\s+{_NEXT_TIME}"

_TALKING = r"(?:talk(?:ing)?|speak(?:ing)?|discuss(?:ing)?|chat(?:ting)?|say(?:ing)?)"
_RECALL = (
    rf"(?:(?:remind\s+(?:me|us)|tell\s+(?:me|us)(?:\s+again)?|do\s+you\s+remember)\s+)?"
    rf"(?:what\s+(?:were|was|are|did|have|had)\s+(?:we|i|you)\s+(?:just\s+|been\s+)*{_TALKING}(?:\s+about)?"
    r"|what\s+(?:(?:did|have)\s+we\s+decided?|we\s+(?:have\s+)?decided)"
    r"|what\s+we\s+(?:were|are|have\s+been)\s+(?:just\s+)?(?:talking\s+about|discussing|doing)"
    r"|what\s+were\s+we\s+(?:just\s+)?(?:doing|at|working\s+on)"
    r"|where\s+(?:were|are)\s+we|where\s+(?:did\s+)?we\s+(?:leave|left|stop(?:ped)?|were)(?:\s+off)?"
    r"|what(?:'s|\s+is|\s+was)\s+this\s+(?:chat|conversation|group)\s+about"
    r"|catch\s+me\s+up|recap)"
    r"(?:\s+(?:again|before|just\s+now|earlier|last\s+time|yesterday|so\s+far))?"
)

_RULES: tuple[Rule[Wish | None], ...] = (
    Rule(r"(?:help|\?|commands|what\s+can\s+you\s+do)", lambda _: Plain.HELP),
    Rule(
        r"(?:hi|hello|hey|hiya|yo|good\s+(?:morning|afternoon|evening|day))(?:\s+there)?(?:,?\s+@?\w+)?",
        lambda _: Plain.GREET,
    ),
    Rule(
        r"(?:(?:many\s+)?thanks|thank\s+you|thx|cheers)(?:\s+(?:a\s+lot|so\s+much))?", lambda _: Plain.THANK
    ),
    Rule(
        r"(?:what(?:'s|\s+is)\s+the\s+time|what\s+time\s+is\s+it|(?:current\s+)?time)(?:\s+now)?",
        lambda _: Plain.TELL_TIME,
    ),
    Rule(
        r"(?:what\s+(?:day|date)\s+is\s+(?:it|today)|what(?:'s|\s+is)\s+(?:the|today's)\s+(?:date|day)"
        r"|date|what\s+day\s+is\s+it)(?:\s+today)?",
        lambda _: Plain.TELL_DAY,
    ),
    Rule(
        r"(?:what(?:'s|\s+is)\s+(?:on|up|happening|planned|scheduled)(?:\s+for)?\s+today"
        r"|what\s+do\s+(?:i|we)\s+have(?:\s+on)?\s+today|(?:show\s+)?(?:my\s+|our\s+|the\s+|today's\s+)?agenda"
        r"|today)",
        lambda _: Plain.TELL_TODAY,
    ),
    Rule(rf"(?:{_SHOW}\s+)?(?:all\s+)?{_OWN}reminders", lambda _: Plain.SHOW_REMINDERS),
    Rule(
        r"(?:cancel|delete|remove|stop)\s+(?:the\s+)?reminder\s+(?:number\s+|no\.?\s*|#\s*)?(?P<id>\d{1,9})",
        lambda match: CancelReminder(int(match["id"])),
    ),
    Rule(_NOTE_FIRST, lambda match: NoteToSelf(match["note"].strip())),
    Rule(_NOTE_LAST, lambda match: NoteToSelf(match["note"].strip())),
    Rule(_RECALL, lambda _: Plain.RECALL),
    Rule(_REMIND.pattern, _remind),
    Rule(rf"{_REMINDER}(?P<body>.*)", _remind),
    Rule(rf"send\s+(?:(?:me|us)\s+)?{_OWN}file\s*:?\s+(?P<path>\S.*)", lambda match: SendFile(match["path"])),
    Rule(
        r"register\s+group\s+(?P<jid>\S+)\s+as\s+(?P<folder>\S+)(?:\s+named\s+(?P<name>.+))?",
        lambda match: AddGroup(
            jid=match["jid"], folder=match["folder"], name=match["name"] or match["folder"]
        ),
    ),
    Rule(r"(?:unregister|remove)\s+group\s+(?P<folder>\S+)", lambda match: DropGroup(match["folder"])),
    Rule(rf"(?:{_SHOW}\s+)?(?:all\s+)?{_OWN}groups", lambda _: Plain.SHOW_GROUPS),
    Rule(rf"(?:{_SHOW}\s+)?(?:all\s+)?{_OWN}lists", lambda _: Plain.SHOW_LISTS),
    Rule(
        r"(?:wake\s+(?:yourself\s+)?(?:up\s+)?(?:again\s+)?in|sleep(?:\s+for)?)\s+(?P<after>\d[\w. ]{0,30})",
        lambda match: Wake(match["after"]),
    ),
    Rule(
        r"(?:what(?:'s|\s+is)\s+(?:still\s+)?(?:open|left)|(?:show\s+)?(?:me\s+)?(?:the\s+|all\s+|my\s+|our\s+)?"
        r"(?:open\s+tasks|dashboard))",
        lambda _: Plain.SHOW_OPEN,
    ),
    Rule(
        r"(?:add|create|make)\s+(?:a\s+|the\s+)?(?:new\s+)?task(?:\s*:\s*|\s+)(?:to\s+)?(?P<body>\S.*)",
        _task,
    ),
    Rule(r"(?:add|create|make)\s+(?:a\s+|the\s+)?(?:new\s+)?task\s*:?", lambda _: AddTask("")),
    Rule(
        r"(?:cancel|drop|delete|remove)\s+(?:the\s+)?task\s+(?P<task>\S.*)",
        lambda match: DropTask(match["task"]),
    ),
    Rule(
        r"(?:task\s+)?(?P<task>\S.*?)\s+(?:is\s+)?(?:now\s+)?(?:at\s+)?(?P<pct>\d{1,3})\s*(?:%|percent)"
        r"(?:\s+(?:done|complete|finished))?",
        _progress,
    ),
    Rule(
        rf"clear\s+(?:the\s+)?(?:done|finished|completed)(?:\s+(?:items|{_TODO}))?(?:\s+(?:on|in|from)\s+{_LIST})?",
        _clear,
    ),
    Rule(rf"(?:add|put)\s+(?P<items>\S.*)\s+(?:to|on|onto)\s+{_LIST}", _add),
    Rule(rf"(?:remove|delete|take)\s+(?P<item>\S.*)\s+(?:from|off)\s+{_LIST}", _removal),
    Rule(rf"{_DONE}\s+(?P<item>\S.*)\s+(?:on|in|from|off)\s+{_LIST}", _finish),
    Rule(rf"{_DONE}\s+(?:with\s+)?{_NUMBER}(?P<item>\S.*)", _finish),
    Rule(rf"mark\s+{_NUMBER}(?P<item>\S.*?)\s+(?:as\s+)?done", _finish),
    Rule(rf"{_SHOW}\s+{_LIST}", _show),
    Rule(rf"{_OWN}(?:{_TODO}(?:\s+list)?|(?P<list>[\w-]+)\s+list)", _show),
    Rule(
        r"(?:add\s+)?(?:a\s+)?(?:to-?\s?do|task)(?:\s*:\s*|\s+)(?P<item>\S.*)",
        lambda match: AddItems((match["item"],)),
    ),
)
