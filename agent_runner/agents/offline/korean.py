"""What is understood in Korean: the same wishes as in English."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

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
    Remind,
    RemindUnclear,
    SendFile,
    SetProgress,
    Wake,
    Wish,
)
from agent_runner.agents.offline.rules import Rule, first

_GIVE = r"(?:\s*(?:좀\s*)?(?:줘|줘요|주세요|줄래|줄래요|주라|달라))?(?:요)?"
_TELL = rf"(?:알려|말해|보여|확인해|확인){_GIVE}"
_DO = rf"(?:\s*해{_GIVE}|\s*하기|\s*하자)?"
_LIST = r"(?:(?P<todo>할\s*일)(?:\s*(?:목록|리스트))?|(?P<list>\S+)\s*(?:목록|리스트))"
_OBJECT = r"(?:\s*(?:을|를|은|는|이|가))?"
_QUOTE = re.compile(r"[라다자]고(?=\s|$)")
_END = re.compile(r"[\s.!?~,]+$")
_EACH = re.compile(r"\s*,\s*")


def read(text: str) -> Wish | None:
    """Tell what a Korean request wishes, None when no pattern knows it."""
    if echo := _ECHO.fullmatch(text):
        return Echo(echo["text"])
    return first(_RULES, _END.sub("", text).strip())


def _list_name(match: re.Match[str]) -> str:
    return match.groupdict().get("list") or TODO


def _show(match: re.Match[str]) -> Wish:
    return OnList(ListAct.SHOW, _list_name(match))


def _clear(match: re.Match[str]) -> Wish:
    return OnList(ListAct.CLEAR_DONE, _list_name(match))


def _without_particle(item: str) -> str:
    """Take the object's particle off: `우유를`, `약을`, but not the end of `가을`."""
    item = item.strip()
    if item.endswith("를") and len(item) > 1:
        return item[:-1]
    return item[:-1] if item.endswith("을") and len(item) > 1 and _has_final(item[-2]) else item


def _has_final(syllable: str) -> bool:
    return "가" <= syllable <= "힣" and (ord(syllable) - ord("가")) % 28 != 0


def _add(match: re.Match[str]) -> Wish:
    name = _list_name(match)
    items = (match["items"],) if name == TODO else _EACH.split(match["items"])
    return AddItems(tuple(_without_particle(item) for item in items if item.strip()), name)


def _add_todo(match: re.Match[str]) -> Wish:
    return AddItems((_without_particle(match["item"]),))


def _task(match: re.Match[str]) -> Wish:
    """`2월 10일까지 블로그 쓰기`, `블로그 쓰기 2월 10일까지`: a deadline only where it is a time."""
    body = match["body"].strip()
    first, _, after = body.partition("까지")
    lead = shapes.leading(first)
    if after.strip() and lead is not None and lead.end == len(first):
        return AddTask(_without_particle(after.strip(" ,")), first)
    if body.endswith("까지") and (trail := shapes.trailing(body.removesuffix("까지"))) is not None:
        title = body[: trail.start].strip(" ,")
        if title:
            return AddTask(_without_particle(title), body.removesuffix("까지")[trail.start :].strip())
    return AddTask(_without_particle(body))


def _progress(match: re.Match[str]) -> Wish | None:
    pct = int(match["pct"])
    return SetProgress(_without_topic(match["task"]), pct) if pct <= 100 else None


def _without_topic(item: str) -> str:
    item = re.sub(r"번$", "", item.strip()) if item.strip()[:-1].isdigit() else item.strip()
    is_foreign = len(item) > 1 and not "가" <= item[-2] <= "힣"
    if len(item) > 1 and item[-1] in "은는" and (is_foreign or _has_final(item[-2]) == (item[-1] == "은")):
        return item[:-1]
    return item


def _remove(match: re.Match[str]) -> Wish:
    return OnList(ListAct.REMOVE, _list_name(match), _without_particle(match["item"]))


def _finish(match: re.Match[str]) -> Wish:
    return OnList(ListAct.FINISH, _list_name(match), match["item"].strip())


def _remind_surely(match: re.Match[str]) -> Wish:
    """The words can only ask for a reminder, so one that is unclear is told as such."""
    return _tidy(splitting.split(match["body"], is_for_all=_is_for_all(match)))


def _remind_perhaps(match: re.Match[str]) -> Wish | None:
    """`… 알려줘` asks for a reminder where it quotes ("…라고") or names a moment; else it asks for news."""
    body = match["body"].strip()
    wish = splitting.split(body, is_for_all=_is_for_all(match))
    if isinstance(wish, RemindUnclear) and not (_QUOTE.search(body) or _names_moment(body)):
        return None
    return _tidy(wish)


def _names_moment(body: str) -> bool:
    lead = shapes.leading(body)
    return lead is not None and lead.when.is_complete


def _remind_after_colon(match: re.Match[str]) -> Wish:
    return _tidy(splitting.split(f"{match['when']}: {match['what']}"))


def _is_for_all(match: re.Match[str]) -> bool:
    return match.groupdict().get("whom") is not None


def _tidy(wish: Remind | RemindUnclear) -> Wish:
    return replace(wish, what=_as_note(wish.what)) if isinstance(wish, Remind) else wish


def _as_note(what: str) -> str:
    """Turn what is quoted (`약 먹으라고`, `회의라고`) into a note (`약 먹기`, `회의`)."""
    for ending, note in (("으라고", "기"), ("하라고", "하기"), ("이라고", ""), ("라고", "")):
        if what.endswith(ending) and len(what) > len(ending):
            stem = what.removesuffix(ending)
            return stem + (note or ("기" if ending == "라고" and _is_verb(stem) else ""))
    if what.endswith(("다고", "자고")):
        return what[:-1]
    return _without_particle(what)


_SHORT_VERBS = frozenset(
    {"가", "오", "주", "사", "보", "내", "타", "자", "켜", "보내", "마시", "만나", "찾아오", "다녀오"}
)


def _is_verb(stem: str) -> bool:
    """Whether it ends in a verb's stem: one such as `끄`, which is no word by itself, or after its object."""
    _, space, last = stem.rpartition(" ")
    return unicodedata.normalize("NFD", stem)[-1] == "\u1173" or (bool(space) and last in _SHORT_VERBS)


_WORK = r"(?:작업|과제|태스크|업무)"
_ECHO = re.compile(r"(?:따라\s*해\s*봐?|따라해|에코)\s*:?\s+(?P<text>.+)", re.DOTALL)
_WHOM = r"(?:(?P<whom>우리(?:\s*모두)?(?:에게|한테)?|모두(?:에게|한테)?|다들)\s+)?"
_REMIND_VERB = (
    rf"(?:알림\s*(?:설정|추가|등록)?{_DO}|리마인[드더]{_DO}|상기\s*시켜{_GIVE}|잊지\s*않게\s*알려{_GIVE})"
)
_NEXT_TIME = r"다음\s*(?:번|대화|차례)?(?:에|까지|(?:을|를)?\s*위해(?:서)?)?"
_NOTE_FIRST = (
    rf"(?:(?:너\s*)?(?:자신|스스로)(?:에게|한테)?\s*(?:메모|노트){_DO}{_GIVE}"
    rf"|{_NEXT_TIME}\s*(?:기억|메모){_DO}{_GIVE})\s*:?\s+(?P<note>\S.*)"
)
_NOTE_LAST = rf"(?P<note>\S.*?)\s+{_NEXT_TIME}\s*(?:기억|메모){_DO}{_GIVE}"

_TALK = r"(?:얘기|이야기|말|대화)"
_RECALL = (
    r"(?:우리(?:가|는)?\s*)?(?:아까|방금|지난번에?|저번에?|어제|전에)?\s*(?:우리(?:가|는)?\s*)?"
    rf"(?:(?:무슨|어떤)\s*{_TALK}(?:를|을)?\s*(?:나누|하|했|중)\S*(?:\s*(?:있|중|거|건)\S*)*"
    rf"|(?:뭐|무엇|뭘)(?:에)?\s*(?:대해(?:서)?\s*)?{_TALK}(?:를|을)?\s*(?:나누|하|했|중)\S*(?:\s*(?:있|중|거|건)\S*)*"
    r"|(?:뭐|뭘|무엇을?)\s*(?:하고\s*있었|하던\s*중이었|하던)\S*(?:\s*(?:중|거|건)\S*)*"
    rf"|어디까지\s*(?:{_TALK}(?:를|을)?\s*)?(?:했|하|나눴|얘기했|이야기했|말했)\S*(?:\s*(?:더라|지))?"
    r"|(?:뭐|뭘|무엇을?)\s*(?:결정|정)(?:을\s*)?했\S*"
    rf"|(?:지금까지|여기까지)\s*(?:{_TALK}|내용)?\s*(?:을|를)?\s*(?:요약|정리)(?:\s*해{_GIVE})?)"
)

_RULES: tuple[Rule[Wish | None], ...] = (
    Rule(
        r"(?:도움말?|도와\s*줘|사용법|명령어|(?:뭐|무엇을?)\s*할\s*(?:수|줄)\s*(?:있|알)(?:어|니|나요|어요|아|아요)?)",
        lambda _: Plain.HELP,
    ),
    Rule(
        r"(?:안녕(?:하세요|하십니까)?|하이|헬로|반가워요?|반갑습니다|좋은\s*(?:아침|저녁).*)",
        lambda _: Plain.GREET,
    ),
    Rule(r"(?:(?:정말\s*)?고마워요?|고맙습니다|감사(?:해요?|합니다)|땡큐)", lambda _: Plain.THANK),
    Rule(
        rf"(?:지금\s*|현재\s*)?(?:몇\s*시(?:야|예요|에요|인가요|지|니|임)?|시간{_OBJECT})(?:\s*{_TELL})?",
        lambda _: Plain.TELL_TIME,
    ),
    Rule(
        rf"(?:오늘(?:은|이)?\s*)?(?:며칠|몇\s*일|몇월\s*며칠|무슨\s*요일|날짜)(?:이야|야|이에요|예요|에요|인가요|이지|지)?{_OBJECT}(?:\s*{_TELL})?",
        lambda _: Plain.TELL_DAY,
    ),
    Rule(_NOTE_FIRST, lambda match: NoteToSelf(match["note"].strip())),
    Rule(_NOTE_LAST, lambda match: NoteToSelf(re.sub(r"(?<=.)(?:이라고|라고|을|를)$", "", match["note"]))),
    Rule(_RECALL, lambda _: Plain.RECALL),
    Rule(
        rf"오늘(?:은)?\s*(?:뭐\s*(?:있(?:어|지|니|나|나요|어요)|해야\s*(?:해|돼|하지))|일정|할\s*일){_OBJECT}(?:요)?(?:\s*(?:{_TELL}|뭐야))?",
        lambda _: Plain.TELL_TODAY,
    ),
    Rule(
        rf"(?:내\s*|우리\s*|모든\s*)?알림(?:\s*(?:목록|리스트))?{_OBJECT}(?:\s*(?:{_TELL}|뭐\s*있어))?",
        lambda _: Plain.SHOW_REMINDERS,
    ),
    Rule(
        rf"(?:알림\s*(?P<id>\d{{1,9}})\s*번?|(?P<id2>\d{{1,9}})\s*번\s*알림){_OBJECT}\s*(?:취소|삭제|지워){_DO}{_GIVE}",
        lambda match: CancelReminder(int(match["id"] or match["id2"])),
    ),
    Rule(
        rf"(?P<path>\S+)\s*파일{_OBJECT}\s*(?:보내|전송){_DO}{_GIVE}", lambda match: SendFile(match["path"])
    ),
    Rule(
        rf"파일\s*(?:보내|전송){_DO}{_GIVE}\s*:?\s+(?P<path>\S.*)",
        lambda match: SendFile(match["path"].strip()),
    ),
    Rule(
        r"그룹\s*등록\s+(?P<jid>\S+)\s+(?P<folder>\S+)(?:\s+(?P<name>.+))?",
        lambda match: AddGroup(
            jid=match["jid"], folder=match["folder"], name=match["name"] or match["folder"]
        ),
    ),
    Rule(
        r"그룹\s*(?:등록\s*)?(?:해제|삭제)\s+(?P<folder>\S+)",
        lambda match: DropGroup(match["folder"]),
    ),
    Rule(rf"그룹(?:들)?(?:\s*(?:목록|리스트))?{_OBJECT}(?:\s*{_TELL})?", lambda _: Plain.SHOW_GROUPS),
    Rule(rf"(?:모든\s*|전체\s*)?(?:목록|리스트)(?:들)?{_OBJECT}(?:\s*{_TELL})?", lambda _: Plain.SHOW_LISTS),
    Rule(
        rf"(?P<count>\d{{1,4}})\s*(?P<unit>분|시간)\s*(?:뒤|후)에?\s*(?:다시\s*)?(?:일어나|깨어나){_GIVE}",
        lambda match: Wake(match["count"] + ("m" if match["unit"] == "분" else "h")),
    ),
    Rule(
        rf"(?:대시보드|(?:남은|열린|진행\s*중인)\s*(?:작업|과제|태스크|일)|(?:뭐|무엇이?)\s*남았(?:어|지|니|나요|어요)|남은\s*(?:거|것)\s*뭐(?:야|예요)?)"
        rf"{_OBJECT}(?:\s*(?:{_TELL}|뭐\s*(?:있어|야)))?",
        lambda _: Plain.SHOW_OPEN,
    ),
    Rule(rf"(?:새\s*)?{_WORK}{_OBJECT}\s*(?:추가|등록){_DO}{_GIVE}\s*:?", lambda _: AddTask("")),
    Rule(
        rf"{_WORK}\s+(?P<task>\S.*?)\s*번?{_OBJECT}\s*(?:취소|삭제|지워|빼){_DO}{_GIVE}",
        lambda match: DropTask(match["task"]),
    ),
    Rule(
        rf"(?P<task>\S.*?)\s*번?\s*{_WORK}{_OBJECT}\s*(?:취소|삭제|지워|빼){_DO}{_GIVE}",
        lambda match: DropTask(match["task"]),
    ),
    Rule(rf"{_WORK}\s*(?:추가|등록){_DO}\s*:?\s*(?P<body>\S.*)", _task),
    Rule(rf"(?P<body>\S.*?)\s+{_WORK}(?:으로|로)?{_OBJECT}\s*(?:추가|등록|넣어){_DO}{_GIVE}", _task),
    Rule(
        rf"(?:{_WORK}\s+)?(?P<task>\S.*?)\s*(?P<pct>\d{{1,3}})\s*(?:%|퍼센트|프로)"
        r"(?:\s*(?:까지)?\s*(?:완료|진행|했|됐|끝났|끝냈)\S*)?(?:이야|야|이에요|예요|입니다)?",
        _progress,
    ),
    Rule(
        rf"(?:{_LIST}(?:에서)?\s*)?완료(?:한|된)?\s*(?:항목|것|거|할\s*일)?{_OBJECT}\s*(?:정리|지워|삭제|비워){_DO}{_GIVE}",
        _clear,
    ),
    Rule(rf"{_LIST}에\s+(?P<items>\S.*?)\s*(?:추가|넣어|적어){_DO}{_GIVE}", _add),
    Rule(rf"(?P<items>\S.*?)\s+{_LIST}에\s*(?:추가|넣어|적어){_DO}{_GIVE}", _add),
    Rule(r"할\s*일\s*추가\s*:?\s*(?P<item>\S.*)", _add_todo),
    Rule(r"할\s*일\s*:\s*(?P<item>\S.*)", _add_todo),
    Rule(rf"{_LIST}에서\s+(?P<item>\S.*?)\s*(?:삭제|빼|지워|제거){_DO}{_GIVE}", _remove),
    Rule(rf"(?P<item>\S.*?)\s+{_LIST}에서\s*(?:삭제|빼|지워|제거){_DO}{_GIVE}", _remove),
    Rule(rf"{_LIST}(?:에서|의)?\s+(?P<item>\d+)\s*번?\s*(?:완료|끝|체크){_DO}", _finish),
    Rule(
        rf"(?P<item>\d+)\s*번?\s*(?:완료|끝|체크|다\s*했어){_DO}(?:요)?",
        _finish,
    ),
    Rule(rf"{_LIST}(?:에서|의)?\s+(?P<item>\S.*?)\s*(?:완료|끝){_DO}", _finish),
    Rule(r"(?P<item>\S.*?)\s*완료(?:했어요?|했습니다)?", _finish),
    Rule(rf"(?:내\s*|우리\s*)?{_LIST}{_OBJECT}(?:\s*(?:{_TELL}|뭐\s*있어))?", _show),
    Rule(r"(?P<when>\S.*?)\s*알림\s*[:：]\s*(?P<what>\S.*)", _remind_after_colon),
    Rule(r"알림\s*[:：]?\s*(?P<body>\S.*)", _remind_surely),
    Rule(rf"{_WHOM}(?P<body>\S.*?)\s*{_REMIND_VERB}", _remind_surely),
    Rule(rf"{_WHOM}(?P<body>\S.*?)\s*(?:알려|말해){_GIVE}", _remind_perhaps),
)
