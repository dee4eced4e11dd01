"""The table of intents: what can be asked, one row each, English and Korean side by side.

Rows are tried in their order, whole texts only. A named group is a slot; one in `TIMES` is a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent_runner.wire.times import Language

TODO = "todo"
"""The list that is meant when none is named."""
ECHO = "Say this in the chat, word for word: "
"""What a task of the host's asks of any agent to have a sentence said again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody asks for: a row of the table and the words for its slots. Nothing has been done yet."""

    intent: str
    language: Language
    slots: Mapping[str, str] = field(default_factory=dict)

    def slot(self, name: str) -> str:
        """Return the words of a slot, empty where there are none."""
        return self.slots.get(name, "")

    def having(self, **slots: str) -> Wish:
        """Return the same wish with other words in some slots."""
        return Wish(intent=self.intent, language=self.language, slots={**self.slots, **slots})


@dataclass(frozen=True, slots=True)
class Row:
    """One intent: patterns over a whole request in each language; `said` names a sentence that answers it."""

    name: str
    en: str | tuple[str, ...]
    ko: str | tuple[str, ...]
    said: str | None = None

    def patterns(self, language: Language) -> tuple[str, ...]:
        """Return the patterns of a language, in the order they are tried."""
        found = self.ko if language is Language.KOREAN else self.en
        return (found,) if isinstance(found, str) else found


TIMES = ("day", "clock", "when")

_TODO = r"(?:to-?\s?dos?|tasks?)"
_OWN = r"(?:(?:the|my|our|a)\s+)?"
_NAME = r"(?P<list>shopping|groceries|(?!the\s)\S.*?(?=\s+list))(?:\s+list)?"
_LIST = rf"{_OWN}(?:(?P<todo>{_TODO})(?:\s+list)?|{_NAME})"
_THE = r"(?:(?:the|that|this|my|our)\s+)?list"
_SHOW = r"(?:(?:show|list|read|open|see)(?:\s+me)?|what(?:'s|\s+is|\s+are)(?:\s+on|\s+in)?)"
_DONE = r"(?:i(?:'ve|\s+have)?\s+)?(?:done|complete|completed|finish|finished|check\s+off|tick\s+off|tick)"
_NO = rf"(?:(?:number|no\.?|item|{_TODO})\s+|#\s*)?"
_STOP = r"(?:cancel|delete|remove|stop|turn\s+off|clear)"
_ALARM = r"(?:reminders?|alarms?|timers?)"
_TALK = r"(?:talk(?:ing)?|speak(?:ing)?|discuss(?:ing)?|chat(?:ting)?|say(?:ing)?)"
_WHO = r"(?P<whom>me|us|everyone|everybody|all)"
_NEXT = r"(?:for|until)\s+(?:the\s+)?next\s+(?:time|turn|conversation)"
_ADD = r"(?:add|create|make|put)"
_BEFORE = r"(?:the|a|one|two|three|\d{1,2})\s+days?\s+before"
_GIVE = r"(?:\s*(?:좀\s*)?(?:줘|줘요|주세요|줄래|줄래요|주라|달라))?(?:요)?"
_TELL = rf"(?:알려|말해|보여|확인해|확인){_GIVE}"
_DO = rf"(?:\s*해{_GIVE}|\s*하기|\s*하자|{_GIVE})"
_OBJ = r"(?:\s*(?:을|를|은|는|이|가|도))?"
_NAME_KO = r"(?P<list>장보기|쇼핑|\S+?(?=\s*(?:목록|리스트)))\s*(?:목록|리스트)?"
_LIST_KO = rf"(?:(?P<todo>할\s*일)(?:\s*(?:목록|리스트))?|{_NAME_KO})"
_WORK = r"(?:작업|과제|태스크|업무)"
_TASK_KO = r"(?P<task>\S.*?)\s*번?"
_ALARM_KO = r"(?:알림|리마인[더드]|알람)"
_DROP_KO = rf"(?:취소|삭제|제거|꺼|지워|빼|끄기){_DO}"
_SEND = rf"(?:보내|설정|추가|등록|맞춰|걸어|울려){_DO}"
_WHOM_KO = r"(?:(?P<whom>우리(?:\s*모두)?(?:에게|한테)?|모두(?:에게|한테)?|다들|나(?:한테|에게)?)\s+)?"
_NEXT_KO = r"다음\s*(?:번|대화|차례)?(?:에|까지|(?:을|를)?\s*위해(?:서)?)?"
_TALK_KO = r"(?:얘기|이야기|말|대화)"
_BEFORE_KO = r"(?P<before>전날|하루\s*전|이틀\s*전|사흘\s*전|\d{1,2}일\s*전|당일)"
_HAVE_KO = (
    r"(?:뭐|무엇이?|뭔가)?\s*(?:있(?:어|지|니|나|나요|어요|을까)"
    r"|남았(?:어|지|니|나요|어요)|(?:해야\s*(?:해|돼|하지)))(?:요)?"
)

ROWS: tuple[Row, ...] = (
    Row(
        "echo",
        en=(r"echo\s+(?P<text>.+)", rf"{re.escape(ECHO.strip())}\s*(?P<text>.+)"),
        ko=r"(?:따라\s*해\s*봐?|따라해|에코)\s*:?\s+(?P<text>.+)",
    ),
    Row(
        "help",
        en=r"(?:help|\?|commands|what\s+can\s+you\s+do)",
        ko=r"(?:도움말?|도와\s*줘|사용법|명령어|(?:뭐|무엇을?)\s*할\s*(?:수|줄)\s*(?:있|알)(?:어|니|나요|어요|아|아요)?)",
    ),
    Row(
        "greet",
        en=r"(?:hi|hello|hey|hiya|yo|good\s+(?:morning|afternoon|evening|day|night))(?:\s+there)?(?:,?\s+@?\w+)?",
        ko=r"(?:안녕(?:하세요|하십니까)?|하이|헬로|반가워요?|반갑습니다|좋은\s*(?:아침|저녁).*)",
        said="greeting",
    ),
    Row(
        "thank",
        en=r"(?:(?:many\s+)?thanks|thank\s+you|thx|cheers)(?:\s+(?:a\s+lot|so\s+much))?",
        ko=r"(?:(?:정말\s*)?고마워요?|고맙습니다|감사(?:해요?|합니다)|땡큐)",
        said="welcome",
    ),
    Row(
        "yes",
        en=r"(?:(?:yes|yep|yeah|yup|y|sure|ok|okay|of\s+course|right)?(?:,?\s*(?:it(?:'s|\s+is)|all|already))?(?:\s*done)?)",
        ko=r"(?:네|넵|예|응|웅|그래|어|맞아|맞아요|좋아|좋아요|ㅇㅇ|ㅇㅋ|(?:네\s*)?(?:다\s*)?(?:했어요?|끝났어요?))",
    ),
    Row(
        "no",
        en=r"(?:no|nope|nah|n|not\s+yet|no,?\s+(?:thanks|not\s+yet|it\s+is\s+not|it\s+isn't))",
        ko=r"(?:아니|아니요|아뇨|아직|아직요|아직\s*(?:아니야|안\s*(?:했|끝났)어요?)|ㄴㄴ|싫어)",
    ),
    Row(
        "never_mind",
        en=r"(?:never\s*mind|forget\s+it|leave\s+it|cancel|cancel\s+that)",
        ko=r"(?:됐어|됐어요|그만|그만둬|취소|취소해|괜찮아|아무것도\s*아니야)",
    ),
    Row(
        "time",
        en=r"(?:what(?:'s|\s+is)\s+the\s+time|what\s+time\s+is\s+it|(?:current\s+)?time)(?:\s+now)?",
        ko=rf"(?:지금\s*|현재\s*)?(?:몇\s*시(?:야|예요|에요|인가요|지|니|임)?|시간{_OBJ})(?:\s*{_TELL})?",
    ),
    Row(
        "day",
        en=(
            (
                r"(?:what\s+(?:day|date)\s+is\s+(?:it|today)|what(?:'s|\s+is)\s+(?:the|today's)\s+(?:date|day)"
                r"|date|what\s+day\s+is\s+it)(?:\s+today)?"
            ),
        ),
        ko=(
            r"(?:오늘(?:은|이)?\s*)?(?:며칠|몇\s*일|몇월\s*며칠|무슨\s*요일|날짜)"
            rf"(?:이야|야|이에요|예요|에요|인가요|이지|지)?{_OBJ}(?:\s*{_TELL})?"
        ),
    ),
    Row(
        "note",
        en=(
            (
                rf"(?:(?:leave\s+(?:a\s+)?)?note\s+to\s+(?:self|yourself)\s*[:,]?"
                rf"|remember\s+{_NEXT}\s*[:,]?(?:\s+that\b)?)\s+(?P<note>\S.*)"
            ),
            rf"remember\s+(?:that\s+)?(?P<note>\S.*?)\s+{_NEXT}",
        ),
        ko=(
            (
                rf"(?:(?:너\s*)?(?:자신|스스로)(?:에게|한테)?\s*(?:메모|노트){_DO}"
                rf"|{_NEXT_KO}\s*(?:기억|메모){_DO})\s*:?\s+(?P<note>\S.*)"
            ),
            rf"(?P<note>\S.*?)(?:이라고|라고|을|를)?\s+{_NEXT_KO}\s*(?:기억|메모){_DO}",
        ),
    ),
    Row(
        "recall",
        en=(
            (
                r"(?:(?:remind\s+(?:me|us)|tell\s+(?:me|us)(?:\s+again)?|do\s+you\s+remember)\s+)?"
                rf"(?:what\s+(?:were|was|are|did|have|had)\s+(?:we|i|you)\s+(?:just\s+|been\s+)*{_TALK}(?:\s+about)?"
                r"|what\s+(?:(?:did|have)\s+we\s+decided?|we\s+(?:have\s+)?decided)"
                r"|what\s+we\s+(?:were|are|have\s+been)\s+(?:just\s+)?(?:talking\s+about|discussing|doing)"
                r"|what\s+were\s+we\s+(?:just\s+)?(?:doing|at|working\s+on)"
                r"|where\s+(?:were|are)\s+we|where\s+(?:did\s+)?we\s+(?:leave|left|stop(?:ped)?|were)(?:\s+off)?"
                r"|what(?:'s|\s+is|\s+was)\s+this\s+(?:chat|conversation|group)\s+about"
                r"|catch\s+me\s+up|recap)"
                r"(?:\s+(?:again|before|just\s+now|earlier|last\s+time|yesterday|so\s+far))?"
            ),
        ),
        ko=(
            r"(?:우리(?:가|는)?\s*)?(?:아까|방금|지난번에?|저번에?|어제|전에)?\s*(?:우리(?:가|는)?\s*)?"
            rf"(?:(?:무슨|어떤)\s*{_TALK_KO}(?:를|을)?\s*(?:나누|하|했|중)\S*(?:\s*(?:있|중|거|건)\S*)*"
            rf"|(?:뭐|무엇|뭘)(?:에)?\s*(?:대해(?:서)?\s*)?{_TALK_KO}(?:를|을)?\s*(?:나누|하|했|중)\S*"
            r"(?:\s*(?:있|중|거|건)\S*)*"
            r"|(?:뭐|뭘|무엇을?)\s*(?:하고\s*있었|하던\s*중이었|하던)\S*(?:\s*(?:중|거|건)\S*)*"
            rf"|어디까지\s*(?:{_TALK_KO}(?:를|을)?\s*)?(?:했|하|나눴|얘기했|이야기했|말했)\S*(?:\s*(?:더라|지))?"
            r"|(?:뭐|뭘|무엇을?)\s*(?:결정|정)(?:을\s*)?했\S*"
            rf"|(?:지금까지|여기까지)\s*(?:{_TALK_KO}|내용)?\s*(?:을|를)?\s*(?:요약|정리)(?:\s*해{_GIVE})?)"
        ),
    ),
    Row(
        "agenda",
        en=(
            r"what(?:'s|\s+is)\s+(?:on|up|happening|planned|scheduled)(?:\s+for)?\s+(?P<day>\S.*)",
            r"what\s+(?:do\s+(?:i|we)\s+have(?:\s+to\s+do)?|have\s+(?:i|we)\s+got|am\s+i\s+doing)(?:\s+on|\s+for)?\s+(?P<day>\S.*)",
            rf"(?:show\s+)?(?:{_OWN}|today's\s+)agenda(?:\s+for\s+(?P<day>\S.*))?",
            r"(?P<day>today|tomorrow)",
        ),
        ko=(
            (
                rf"(?P<day>\S.*?)(?:은|는|에|엔|에는|의)?\s*(?:{_HAVE_KO}|(?:일정|스케줄|할\s*일)){_OBJ}"
                rf"(?:\s*(?:{_TELL}|뭐야|뭐\s*있어))?"
            ),
            r"(?P<day>오늘|내일)",
        ),
    ),
    Row(
        "show_reminders",
        en=(
            rf"(?:{_SHOW}\s+)?(?:all\s+)?{_OWN}(?:reminders|alarms|timers)",
            (
                r"(?:what|which)\s+(?:reminders|alarms|timers)\s+(?:do\s+(?:i|we)\s+have|are\s+(?:there|set|on)"
                r"|have\s+(?:i|we)(?:\s+got|\s+set)?)(?:\s+set|\s+now)?"
            ),
            r"do\s+(?:i|we)\s+have\s+(?:any\s+)?reminders",
        ),
        ko=(
            rf"(?:내\s*|우리\s*|모든\s*|무슨\s*|어떤\s*)?{_ALARM_KO}(?:\s*(?:목록|리스트))?{_OBJ}"
            rf"(?:\s*(?:{_TELL}|{_HAVE_KO}))?"
        ),
    ),
    Row(
        "cancel_reminder",
        en=(
            rf"{_STOP}\s+(?P<all>all(?:\s+(?:the|my|our))?\s+{_ALARM})",
            rf"{_STOP}\s+{_OWN}(?:that\s+|this\s+)?{_ALARM}(?:\s+(?:number\s+|no\.?\s*|#\s*)?(?P<item>\d{{1,9}}))?",
            rf"{_STOP}\s+{_OWN}{_ALARM}\s+(?:to|about|for|of)\s+(?P<item>\S.*)",
            rf"{_STOP}\s+{_OWN}(?P<item>\S.*?)\s+{_ALARM}",
        ),
        ko=(
            rf"(?P<all>(?:모든\s*{_ALARM_KO}|{_ALARM_KO}\s*(?:모두|전부|다))){_OBJ}\s*{_DROP_KO}",
            rf"{_ALARM_KO}\s*(?P<item>\d{{1,9}})\s*번?{_OBJ}\s*{_DROP_KO}",
            rf"(?P<item>\d{{1,9}})\s*번\s*{_ALARM_KO}{_OBJ}\s*{_DROP_KO}",
            rf"{_ALARM_KO}{_OBJ}\s*{_DROP_KO}",
            rf"(?P<item>\S.*?)\s*{_ALARM_KO}{_OBJ}\s*{_DROP_KO}",
        ),
    ),
    Row(
        "timer",
        en=(
            r"(?:(?:set|start|make)\s+)?(?:a\s+|an\s+)?timer(?:\s+for|\s+of|\s*:)?\s+(?P<span>\S.*)",
            r"(?:(?:set|start|make)\s+)?(?:a\s+|an\s+)?(?P<span>\S.*?)\s+timer",
        ),
        ko=(
            rf"(?P<span>\S.*?)(?:짜리)?\s*타이머{_OBJ}(?:\s*(?:설정|시작|맞춰|켜){_DO})?",
            rf"타이머{_OBJ}\s*(?P<span>\S.*?)(?:\s*(?:으로|로))?(?:\s*(?:설정|시작|맞춰|켜){_DO})?",
        ),
    ),
    Row(
        "get_up",
        en=(
            r"wake\s+(?P<whom>me|us)(?:\s+up)?\s+(?P<when>\S.*)",
            r"(?P<when>\S.*?),?\s+wake\s+(?P<whom>me|us)(?:\s+up)?",
        ),
        ko=rf"(?P<when>\S.*?)\s*{_WHOM_KO}깨워{_GIVE}",
    ),
    Row(
        "before_deadline",
        en=(
            (
                rf"remind\s+{_WHO}\s+(?:(?:about|of)\s+)?(?P<before>{_BEFORE})\s+(?:the\s+)?(?P<task>\S.*?)??\s*"
                r"(?:(?:'s\s+)?deadline|is\s+due)(?:,?\s+(?P<clock>(?:at|in)\s+\S.*|\d\S*))?"
            ),
        ),
        ko=(
            rf"{_WHOM_KO}(?:(?P<task>\S.*?)\s+)?마감(?:일)?\s*{_BEFORE_KO}에?\s*(?P<clock>\S.*?)??\s*"
            rf"(?:(?:에\s*)?{_ALARM_KO}{_OBJ}\s*{_SEND}|(?:에\s*)?(?:알려|말해){_GIVE})"
        ),
    ),
    Row(
        "send_file",
        en=rf"send\s+(?:(?:me|us)\s+)?{_OWN}file\s*:?\s+(?P<path>\S.*)",
        ko=(
            rf"(?P<path>\S+)\s*파일{_OBJ}\s*(?:보내|전송){_DO}",
            rf"파일\s*(?:보내|전송){_DO}\s*:?\s+(?P<path>\S.*)",
        ),
    ),
    Row(
        "add_group",
        en=r"register\s+group\s+(?P<jid>\S+)\s+as\s+(?P<folder>\S+)(?:\s+named\s+(?P<name>.+))?",
        ko=r"그룹\s*등록\s+(?P<jid>\S+)\s+(?P<folder>\S+)(?:\s+(?P<name>.+))?",
    ),
    Row(
        "drop_group",
        en=r"(?:unregister|remove)\s+group\s+(?P<folder>\S+)",
        ko=r"그룹\s*(?:등록\s*)?(?:해제|삭제)\s+(?P<folder>\S+)",
    ),
    Row(
        "show_groups",
        en=rf"(?:{_SHOW}\s+)?(?:all\s+)?{_OWN}groups",
        ko=rf"그룹(?:들)?(?:\s*(?:목록|리스트))?{_OBJ}(?:\s*{_TELL})?",
    ),
    Row(
        "show_lists",
        en=rf"(?:{_SHOW}\s+)?(?:all\s+)?{_OWN}lists",
        ko=rf"(?:모든\s*|전체\s*)?(?:목록|리스트)(?:들)?{_OBJ}(?:\s*{_TELL})?",
    ),
    Row(
        "wake",
        en=r"(?:wake\s+(?:yourself\s+)?(?:up\s+)?(?:again )?in|sleep(?:\s+for)?)\s+(?P<after>\d[\w. ]{0,9})",
        ko=rf"(?P<after>\d{{1,4}}\s*(?:분|시간))\s*(?:뒤|후)에?\s*(?:다시\s*)?(?:일어나|깨어나){_GIVE}",
    ),
    Row(
        "due",
        en=(
            r"what(?:'s|\s+is)\s+due(?:\s+(?:on\s+|by\s+)?(?P<day>\S.*))?",
            rf"(?:{_SHOW}\s+)?(?:all\s+)?{_OWN}(?:deadlines|due\s+(?:tasks|dates))",
        ),
        ko=(
            rf"(?:(?P<day>\S.*?)(?:에|의)?\s+)?(?:마감|기한)(?:일)?(?:인|되는)?\s*(?:작업|과제|일|거|것)?{_OBJ}"
            rf"\s*(?:{_HAVE_KO}|언제(?:야|예요|지)?|뭐(?:야|예요|지)?|목록|{_TELL})"
        ),
    ),
    Row(
        "show_open",
        en=(
            (
                r"(?:what(?:'s|\s+is)\s+(?:still\s+)?(?:open|left)|(?:show\s+)?(?:me\s+)?(?:the\s+|all\s+|my\s+|our\s+)?"
                r"(?:(?:open\s+)?tasks|dashboard))"
            ),
        ),
        ko=(
            r"(?:대시보드|(?:남은|열린|진행\s*중인)\s*(?:작업|과제|태스크|일)|(?:뭐|무엇이?)\s*남았(?:어|지|니|나요|어요)"
            rf"|남은\s*(?:거|것)\s*뭐(?:야|예요)?){_OBJ}(?:\s*(?:{_TELL}|뭐\s*(?:있어|야)))?"
        ),
    ),
    Row(
        "add_task",
        en=rf"(?:{_ADD}\s+(?:(?:a|the|another)\s+)?(?:new\s+)?|(?:a\s+)?new\s+)tasks?"
        r"(?:\s*:|(?:\s*:\s*|\s+)(?:to\s+)?(?P<body>\S.*))?",
        ko=(
            rf"(?:새\s*|새로운\s*)?{_WORK}{_OBJ}\s*(?:추가|등록){_DO}\s*:?",
            rf"(?:새\s*|새로운\s*)?{_WORK}\s*(?:추가|등록){_DO}\s*:?\s*(?P<body>\S.*)",
            rf"(?:새|새로운)\s*{_WORK}\s*:?\s*(?P<body>\S.*)",
            rf"(?P<body>\S.*?)\s+(?:새\s*)?{_WORK}(?:으로|로)?{_OBJ}\s*(?:추가|등록|넣어){_DO}(?:\s+(?P<tail>\S.*까지))?",
        ),
    ),
    Row(
        "drop_task",
        en=r"(?:cancel|drop|delete|remove)\s+(?:the\s+)?task\s+(?P<task>\S.*)",
        ko=(rf"{_WORK}\s+{_TASK_KO}{_OBJ}\s*{_DROP_KO}", rf"{_TASK_KO}\s*{_WORK}{_OBJ}\s*{_DROP_KO}"),
    ),
    Row(
        "unblock",
        en=(
            r"(?:task\s+)?(?:the\s+)?(?P<task>\S.*?)\s+is(?:\s+not|n't|\s+no\s+longer)\s+blocked(?:\s+any\s?more)?",
            r"unblock\s+(?:task\s+)?(?:the\s+)?(?P<task>\S.*)",
        ),
        ko=r"(?P<task>\S.*?)(?:이|가|은|는)?\s*(?:이제\s*)?(?:안\s*막혔|막힌\s*(?:것|거|게)?\s*풀렸|풀렸)(?:어|어요|습니다|음)",
    ),
    Row(
        "block",
        en=(
            (
                r"(?:task\s+)?(?:the\s+)?(?P<task>\S.*?)\s+is\s+(?:now\s+)?(?:blocked|stuck)"
                r"(?:\s*(?::|,|-|because(?:\s+of)?|by)\s*(?P<reason>\S.*))?"
            ),
        ),
        ko=r"(?P<task>\S.*?)(?:이|가|은|는)?\s*막(?:힘|혔(?:어|어요|습니다|음))(?:\s*[:,]\s*(?P<reason>\S.*))?",
    ),
    Row(
        "progress",
        en=(
            (
                r"(?:task\s+)?(?P<task>\S.*?)\s+(?:is\s+)?(?:now\s+)?(?:at\s+)?(?P<pct>100|\d{1,2})\s*(?:%|percent)"
                r"(?:\s+(?:done|complete|finished))?"
            ),
        ),
        ko=(
            rf"(?:{_WORK}\s+)?(?P<task>\S.*?)\s*(?P<pct>100|\d{{1,2}})\s*(?:%|퍼센트|프로)"
            r"(?:\s*(?:까지)?\s*(?:완료|진행|했|됐|끝났|끝냈)\S*)?(?:이야|야|이에요|예요|입니다)?"
        ),
    ),
    Row(
        "clear_done",
        en=rf"clear\s+(?:the\s+)?(?:done|finished|completed)(?:\s+(?:items|{_TODO}))?(?:\s+(?:on|in|from)\s+{_LIST})?",
        ko=rf"(?:{_LIST_KO}(?:에서)?\s*)?완료(?:한|된)?\s*(?:항목|것|거|할\s*일)?{_OBJ}\s*(?:정리|지워|삭제|비워){_DO}",
    ),
    Row(
        "clear_list",
        en=rf"(?:clear|empty|wipe|delete)\s+(?:out\s+)?(?:(?P<it>{_THE}|it)|{_LIST})",
        ko=rf"(?:{_LIST_KO}|(?P<it>목록|리스트)){_OBJ}\s*(?:(?:다|모두|전부|전체)\s*(?:지워|삭제|비워)|비워|비우기|초기화){_DO}",
    ),
    Row(
        "add_items",
        en=rf"(?:add|put)\s+(?P<items>\S.*)\s+(?:to|on|onto)\s+(?:(?P<it>{_THE}|it)|{_LIST})\s*:?(?P<more>\n.*)?",
        ko=(
            rf"{_LIST_KO}에\s+(?P<items>\S.*?)\s*(?:추가|넣어|적어){_DO}",
            rf"(?P<items>\S.*?)\s+{_LIST_KO}에\s*(?:추가|넣어|적어){_DO}",
        ),
    ),
    Row(
        "remove",
        en=rf"(?:remove|delete|take)\s+(?P<item>\S.*?)(?:\s+(?:from|off)\s+(?:(?P<it>{_THE}|it)|{_LIST}))?",
        ko=(
            rf"{_LIST_KO}에서\s+(?P<item>\S.*?)\s*{_DROP_KO}",
            rf"(?P<item>\S.*?)\s+{_LIST_KO}에서\s*{_DROP_KO}",
        ),
    ),
    Row(
        "finish",
        en=(
            rf"{_DONE}\s+(?P<item>\S.*)\s+(?:on|in|from|off)\s+{_LIST}",
            rf"{_DONE}\s+(?:with\s+)?{_NO}(?P<item>\S.*)",
            rf"mark\s+{_NO}(?P<item>\S.*?)\s+(?:as\s+)?(?:done|finished|complete)",
            rf"{_NO}(?P<item>(?!what|which|how|who|it\b|that\b|well\b|all\b)\S.*?)\s+(?:is\s+|are\s+)?(?:done|finished)",
        ),
        ko=(
            rf"{_LIST_KO}(?:에서|의)?\s+(?P<item>\d+)\s*번?\s*(?:완료|끝|체크){_DO}",
            rf"(?P<item>\d+)\s*번?{_OBJ}\s*(?:완료|끝|체크|다\s*했어){_DO}",
            rf"{_LIST_KO}(?:에서|의)?\s+(?P<item>\S.*?)\s*(?:완료|끝){_DO}",
            rf"(?P<item>\S.*?){_OBJ}\s*(?:완료|끝)(?:{_DO}|했어요?|했습니다|났어요?|냈어요?)",
            r"(?P<item>\S.*?)(?:을|를)?\s*다\s*(?:했어요?|끝냈어요?)",
        ),
    ),
    Row(
        "show_list",
        en=(
            rf"{_SHOW}\s+(?:(?P<it>{_THE})|{_LIST})",
            rf"{_OWN}(?:(?P<todo>{_TODO}(?:\s+list)?)|(?P<list>[\w-]+)\s+list)",
        ),
        ko=rf"(?:내\s*|우리\s*)?{_LIST_KO}{_OBJ}(?:\s*(?:{_TELL}|뭐\s*있어))?",
    ),
    Row(
        "add_todo",
        en=(
            r"(?:add\s+)?(?:a\s+)?(?:to-?\s?dos?|task)(?:\s*:\s*|\s+)(?P<items>\S.*)",
            r"add\s+(?P<bare>(?!.*(?:\blist\b|\?|\b(?:what|who|when|where|why|how|which)\b))\S.*)",
        ),
        ko=(
            rf"(?:새\s*)?할\s*일\s*(?:추가|등록){_DO}\s*:?\s*(?P<items>\S.*)",
            r"할\s*일\s*:\s*(?P<items>\S.*)",
            rf"(?P<items>\S.*?)\s+할\s*일(?:로|에)?\s*(?:추가|등록|넣어){_DO}",
            rf"(?P<bare>\S.*?)\s*(?:추가|넣어){_DO}",
        ),
    ),
    Row(
        "remind",
        en=(
            rf"remind\s+{_WHO}\b(?P<body>.*)",
            rf"(?P<first>\S.*?),?\s+remind\s+{_WHO}\b(?P<body>.*)",
            r"(?:(?:set|create|make|add)\s+)?(?:a\s+|an\s+)?(?:new\s+)?(?:reminder|alarm)\b(?:\s+for\b|\s*:)?(?P<body>.*)",
        ),
        ko=(
            r"(?P<first>\S.*?)\s*알림\s*[:：]\s*(?P<body>\S.*)",
            rf"{_ALARM_KO}{_OBJ}\s*{_SEND}",
            r"알림\s*[:：]?\s*(?P<body>\S.*)",
            rf"{_WHOM_KO}(?P<body>\S.*?)\s*(?:에\s*)?{_ALARM_KO}{_OBJ}\s*(?:{_SEND}|{_DO})",
            rf"{_WHOM_KO}(?P<body>\S.*?)\s*(?:상기\s*시켜|잊지\s*않게\s*알려){_GIVE}",
            rf"{_WHOM_KO}(?P<news>\S.*?)\s*(?:알려|말해){_GIVE}",
        ),
    ),
)
