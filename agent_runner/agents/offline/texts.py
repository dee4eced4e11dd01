"""What the agent says: the same sentences in English and Korean, with the same blanks."""

from __future__ import annotations

from agent_runner.agents.offline.checklists import Fault
from agent_runner.agents.offline.dates import Shift, Trouble
from agent_runner.agents.offline.intents import Language
from agent_runner.agents.offline.words import Words

ENGLISH = Words(
    language=Language.ENGLISH,
    greeting="Hello{sender}! I'm {name}, running without a language model. Say 'help' to see what I can do.",
    welcome="You're welcome.",
    no_model=(
        "I can't answer that: no language model is configured. To add one, put ANTHROPIC_API_KEY=… or "
        "CLAUDE_CODE_OAUTH_TOKEN=… into the file .env beside andy.toml and restart. "
        "Until then, say 'help' to see what I can do."
    ),
    help=(
        "I'm {name}, running without a language model. This is what I can do:\n\n"
        "*Reminders*\n"
        "• remind me to call mum in 10 minutes\n"
        "• remind us tomorrow at 9am to pay rent\n"
        "• remind me on 12 Dec at 18:00 to wrap the presents\n"
        "• list reminders · cancel reminder 3\n\n"
        "*Tasks on the dashboard*\n"
        "• add a task write the blog by 10 Feb · blog 80% · what's open? · done 2 · cancel task 3\n\n"
        "*To-dos and lists*\n"
        "• todo buy stamps · show todo · done 2\n"
        "• add milk, eggs to the shopping list · show the shopping list\n"
        "• done milk on the shopping list · remove milk from the shopping list · clear done · lists\n\n"
        "*Files of this group*\n"
        "• send file notes.txt\n\n"
        "*Notes for next time*\n"
        "• remember for next time: the code is 42\n\n"
        "*Day and time*\n"
        "• what's on today? · what time is it? · what day is today?\n\n"
        "*This conversation*\n"
        "• what were we talking about?\n\n"
        "*Check that I'm here*\n"
        "• echo hello"
    ),
    help_main=(
        "\n\n*Groups*\n"
        "• groups\n"
        "• register group 1203…@g.us as family named Our Family\n"
        "• unregister group family"
    ),
    time="It's {clock} ({zone}), {day}.",
    day="Today is {day}.",
    note="⏰ Reminder for {sender}: {what}",
    note_for_all="⏰ Reminder: {what}",
    reminder_set="I'll remind you on {moment}: {what} (reminder {id}).",
    reminder_late="I could not be reached until {moment} had passed: I say it now.",
    reminder_cancelled="Reminder {id} is cancelled.",
    reminders="Reminders:",
    no_reminders="There are no reminders.",
    today="Today, {day}:",
    nothing_today="Nothing is on today, {day}: no reminders and no open to-dos.",
    added="Added to {list}: {items}.",
    there_already="Already on {list}: {items}.",
    done="Done on {list}: {item}.",
    removed="Removed from {list}: {item}.",
    cleared="Cleared from {list}: {count}.",
    items="Open on {list}:",
    no_open_items="Nothing is open on {list}.",
    done_items="(Done: {count}. 'clear done' takes them off the to-do list.)",
    lists="Lists:",
    no_lists="There are no lists yet. Begin one: add milk to the shopping list.",
    list_line="• {list}: {count} open",
    todo_name="the to-do list",
    list_name="the {name} list",
    groups="Chats I know:",
    no_groups="I know of no chats yet.",
    not_registered="not registered",
    registered="{name} is registered as '{folder}'.",
    unregistered="'{folder}' is no longer registered. Its files and history stay.",
    only_main="Sorry, groups are only managed from the main group.",
    not_possible="That can't be done: {reason}.",
    file_sent="{path} is on its way.",
    wake_set="I will look again by myself in {minutes} minutes.",
    note_kept="Noted. I'll come back to it next time: {note}",
    note_to_self="📝 I made a note of this last time: {note}",
    host_fact="⚠️ {fact}",
    task_added="On the dashboard: {title} (no deadline).",
    task_added_until="On the dashboard: {title}, due {date}.",
    task_progress="{title}: {pct}%.",
    task_done="Done: {title}.",
    task_dropped="Off the dashboard: {title}.",
    task_what="Which task? Say, for example: add a task write the blog by 10 Feb",
    task_unknown="No open task fits '{item}'. Say 'what's open?' to see them by number.",
    task_many="Several tasks fit '{item}'. Say the number: 'what's open?' tells it.",
    task_or_todo="'{item}' is a task ({task}) and a to-do ({todo}). Say more of the one you mean.",
    task_until=", due {date}",
    task_blocked="blocked",
    open_tasks="Open tasks:",
    open_questions="Open questions:",
    nothing_open="Nothing is open.",
    recall="This is where we were:",
    recall_plan="*Plan:* {plan}",
    recall_task=", at the task '{task}'",
    recall_decided="*Decided:*",
    recall_before="*Before:* {summary}",
    recall_last="*Last said:*",
    recall_nothing="Nothing is kept of this conversation yet: it begins here.",
    disk="I couldn't read or write the list: {reason}.",
    shifts={
        Shift.NONE: "",
        Shift.SKIPPED: " The clocks go forward then and skip the time you named, so I took this one.",
        Shift.TWICE: " The clocks go back then and that time comes twice; this is the one at UTC{offset}.",
    },
    troubles={
        Trouble.NO_TIME: "I found no time in that. Say it like: remind me tomorrow at 9:00 to pay rent.",
        Trouble.NEEDS_CLOCK: "At what time? Say it like: remind me tomorrow at 9:00 to pay rent.",
        Trouble.WHICH_HALF: "Morning or evening? Say it like 9am, 9pm or 21:00.",
        Trouble.WHICH_WEEK: "'Next' can mean two days here. "
        "Say the date: remind me on 12 Dec at 9:00 to pay rent.",
        Trouble.NO_SUCH_TIME: "There is no such time. Say it like 9am or 18:30.",
        Trouble.NO_SUCH_DAY: "There is no such day. Say it like 12 Dec or 2026-12-12.",
        Trouble.WRONG_WEEKDAY: "The day and the date don't fit: that date is {moment}. Say one of the two.",
        Trouble.PAST: "That time is past ({moment}). "
        "Say a time to come: remind me tomorrow at 9:00 to pay rent.",
        Trouble.TOO_FAR: "That is more than ten years away: too far for me.",
        Trouble.REPEATS: "I can't repeat reminders without a language model. "
        "I can set one: remind me tomorrow at 9:00 to take the pills.",
        Trouble.TIME_FIRST: "I'm not sure which words are the time. "
        "Put it first and in full: remind me tomorrow at 9:00 to pay rent.",
        Trouble.NO_TEXT: "What should I remind you of? Say it like: remind me in 10 minutes to call mum.",
    },
    faults={
        Fault.BAD_NAME: "A list's name may have letters, digits, spaces, - and _, at most 40 of them.",
        Fault.NO_LIST: "{list} doesn't exist yet. Begin it by adding something: {example}.",
        Fault.NO_ITEM: "'{item}' isn't on {list}.",
        Fault.MANY_ITEMS: "Several entries of {list} fit '{item}'. Say the number.",
        Fault.ITEM_TOO_LONG: "That is too long for a list: at most 500 characters an entry.",
        Fault.NOT_OURS: "I don't touch {list}: its file is not a plain text file in this group's folder.",
    },
)

KOREAN = Words(
    language=Language.KOREAN,
    greeting="안녕하세요{sender}! 저는 언어 모델 없이 동작 중인 {name}입니다. "
    "'도움말'이라고 하면 할 수 있는 일을 알려드려요.",
    welcome="천만에요.",
    no_model=(
        "그건 답할 수 없어요. 설정된 언어 모델이 없습니다. 추가하려면 andy.toml 옆의 .env 파일에 "
        "ANTHROPIC_API_KEY=… 또는 CLAUDE_CODE_OAUTH_TOKEN=… 을 넣고 다시 시작하세요. "
        "그때까지는 '도움말'이라고 하면 할 수 있는 일을 알려드려요."
    ),
    help=(
        "저는 언어 모델 없이 동작 중인 {name}입니다. 할 수 있는 일은 다음과 같아요.\n\n"
        "*알림*\n"
        "• 10분 뒤에 회의라고 알려줘\n"
        "• 내일 오전 9시에 약 먹으라고 알려줘\n"
        "• 12월 25일 18:00 알림: 선물 포장\n"
        "• 알림 목록 · 알림 3 취소\n\n"
        "*대시보드의 작업*\n"
        "• 작업 추가 블로그 쓰기 2월 10일까지 · 블로그 80% · 남은 작업 · 2번 완료 · 작업 3번 취소\n\n"
        "*할 일과 목록*\n"
        "• 할 일 추가 우표 사기 · 할 일 보여줘 · 2번 완료\n"
        "• 우유, 계란 장보기 목록에 추가 · 장보기 목록 보여줘\n"
        "• 장보기 목록 2번 완료 · 우유 장보기 목록에서 삭제 · 완료 항목 정리 · 목록\n\n"
        "*이 그룹의 파일*\n"
        "• 파일 보내 notes.txt\n\n"
        "*다음을 위한 메모*\n"
        "• 다음에 기억해 줘: 코드는 42\n\n"
        "*날짜와 시간*\n"
        "• 오늘 뭐 있어? · 지금 몇 시? · 오늘 며칠?\n\n"
        "*이 대화*\n"
        "• 무슨 얘기 하고 있었지?\n\n"
        "*제가 있는지 확인*\n"
        "• 에코 안녕"
    ),
    help_main="\n\n*그룹*\n• 그룹 목록\n• 그룹 등록 1203…@g.us family 우리 가족\n• 그룹 해제 family",
    time="지금은 {clock}입니다 ({zone}). {day}이에요.",
    day="오늘은 {day}입니다.",
    note="⏰ {sender}님 알림: {what}",
    note_for_all="⏰ 알림: {what}",
    reminder_set="{moment}에 알려드릴게요: {what} (알림 {id}번).",
    reminder_late="연락이 닿지 않는 사이에 {moment}이(가) 지나서 지금 알려드려요.",
    reminder_cancelled="알림 {id}번을 취소했어요.",
    reminders="알림:",
    no_reminders="알림이 없어요.",
    today="오늘 ({day}):",
    nothing_today="오늘 ({day})은 알림도 남은 할 일도 없어요.",
    added="{list}에 추가했어요: {items}.",
    there_already="{list}에 이미 있어요: {items}.",
    done="{list}에서 완료했어요: {item}.",
    removed="{list}에서 지웠어요: {item}.",
    cleared="{list}에서 완료한 항목을 정리했어요: {count}개.",
    items="{list}에 남은 것:",
    no_open_items="{list}에 남은 것이 없어요.",
    done_items="(완료 {count}개. '완료 항목 정리'라고 하면 할 일 목록에서 지워요.)",
    lists="목록:",
    no_lists="아직 목록이 없어요. 이렇게 시작하세요: 우유 장보기 목록에 추가.",
    list_line="• {list}: {count}개 남음",
    todo_name="할 일 목록",
    list_name="{name} 목록",
    groups="알고 있는 대화방:",
    no_groups="아직 알고 있는 대화방이 없어요.",
    not_registered="등록 안 됨",
    registered="{name}을(를) '{folder}'(으)로 등록했어요.",
    unregistered="'{folder}' 등록을 해제했어요. 파일과 기록은 남아 있어요.",
    only_main="죄송하지만 그룹 관리는 메인 그룹에서만 할 수 있어요.",
    not_possible="그렇게는 할 수 없어요: {reason}.",
    file_sent="{path} 파일을 보내고 있어요.",
    wake_set="{minutes}분 뒤에 스스로 다시 살펴볼게요.",
    note_kept="적어 두었어요. 다음에 다시 말씀드릴게요: {note}",
    note_to_self="📝 지난번에 적어 둔 것이에요: {note}",
    host_fact="⚠️ {fact}",
    task_added="대시보드에 올렸어요: {title} (기한 없음).",
    task_added_until="대시보드에 올렸어요: {title}, 기한 {date}.",
    task_progress="{title}: {pct}%.",
    task_done="완료했어요: {title}.",
    task_dropped="대시보드에서 뺐어요: {title}.",
    task_what="어떤 작업인가요? 예: 작업 추가 블로그 쓰기 2월 10일까지",
    task_unknown="'{item}'에 맞는 작업이 없어요. '남은 작업'이라고 하면 번호를 알려드려요.",
    task_many="'{item}'에 맞는 작업이 여러 개예요. 번호로 말해 주세요: '남은 작업'.",
    task_or_todo="'{item}'은(는) 작업({task})이기도 하고 할 일({todo})이기도 해요. 조금 더 말해 주세요.",
    task_until=", 기한 {date}",
    task_blocked="막힘",
    open_tasks="남은 작업:",
    open_questions="답을 기다리는 질문:",
    nothing_open="남은 것이 없어요.",
    recall="여기까지 이야기했어요:",
    recall_plan="*계획:* {plan}",
    recall_task=", 지금 작업은 '{task}'",
    recall_decided="*결정한 것:*",
    recall_before="*그 전:* {summary}",
    recall_last="*마지막 대화:*",
    recall_nothing="아직 이 대화에서 남겨 둔 것이 없어요. 여기서부터 시작이에요.",
    disk="목록을 읽거나 쓰지 못했어요: {reason}.",
    shifts={
        Shift.NONE: "",
        Shift.SKIPPED: " 서머타임으로 말씀하신 시각이 없어서 이 시각으로 잡았어요.",
        Shift.TWICE: " 서머타임이 끝나 그 시각이 두 번 있어요. UTC{offset} 쪽으로 잡았어요.",
    },
    troubles={
        Trouble.NO_TIME: "시각을 찾지 못했어요. 이렇게 말해 주세요: 내일 오전 9시에 약 먹으라고 알려줘.",
        Trouble.NEEDS_CLOCK: "몇 시에요? 이렇게 말해 주세요: 내일 오전 9시에 약 먹으라고 알려줘.",
        Trouble.WHICH_HALF: "오전인가요, 오후인가요? 오전 9시, 오후 9시, 21시처럼 말해 주세요.",
        Trouble.WHICH_WEEK: "어느 주인지 모르겠어요. "
        "날짜로 말해 주세요: 12월 12일 오전 9시에 약 먹으라고 알려줘.",
        Trouble.NO_SUCH_TIME: "그런 시각은 없어요. 오전 9시나 18:30처럼 말해 주세요.",
        Trouble.NO_SUCH_DAY: "그런 날짜는 없어요. 12월 12일이나 2026-12-12처럼 말해 주세요.",
        Trouble.WRONG_WEEKDAY: "요일과 날짜가 맞지 않아요. "
        "그 날짜는 {moment}입니다. 둘 중 하나만 말해 주세요.",
        Trouble.PAST: "이미 지난 시각이에요 ({moment}). "
        "앞으로의 시각을 말해 주세요: 내일 오전 9시에 약 먹으라고 알려줘.",
        Trouble.TOO_FAR: "10년이 넘게 남은 날이라 알림을 잡을 수 없어요.",
        Trouble.REPEATS: "언어 모델 없이는 반복 알림을 할 수 없어요. "
        "한 번은 할 수 있어요: 내일 오전 9시에 약 먹으라고 알려줘.",
        Trouble.TIME_FIRST: "어디까지가 시각인지 확실하지 않아요. "
        "시각을 맨 앞에 다 적어 주세요: 내일 오전 9시에 약 먹으라고 알려줘.",
        Trouble.NO_TEXT: "무엇을 알려드릴까요? 이렇게 말해 주세요: 10분 뒤에 회의라고 알려줘.",
    },
    faults={
        Fault.BAD_NAME: "목록 이름에는 글자, 숫자, 공백, -, _만 쓸 수 있고 40자까지예요.",
        Fault.NO_LIST: "{list}은 아직 없어요. 무언가 추가하면 시작돼요: {example}.",
        Fault.NO_ITEM: "{list}에 '{item}'이(가) 없어요.",
        Fault.MANY_ITEMS: "{list}에 '{item}'에 맞는 항목이 여러 개예요. 번호로 말해 주세요.",
        Fault.ITEM_TOO_LONG: "목록에 넣기에는 너무 길어요. 항목당 500자까지예요.",
        Fault.NOT_OURS: "{list}은 건드리지 않아요. 이 그룹 폴더 안의 평범한 텍스트 파일이 아니에요.",
    },
)


def words_of(language: Language) -> Words:
    return KOREAN if language is Language.KOREAN else ENGLISH
