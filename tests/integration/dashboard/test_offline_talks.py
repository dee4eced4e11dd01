"""Whole talks with the agent without a model, through the real reception: what is asked, answered, done."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_runner.workspace import Workspace
from orchestrator.domain.dashboard import QuestionType
from tests.support.dashboard_harness import DAY_MS, FEB_9_0830, HOUR_MS, a_question, blog
from tests.support.offline_chat import Chat, talking
from tests.support.store_harness import StoreHarness

TALKS = {
    "numbers that nobody was shown": """
        > todo buy stamps
        > done 1
        Do you mean this one? Say yes or no.
        1. the to-do 'buy stamps'
        > no
        > add a task write the blog
        > task 1 80%
        Do you mean this one? Say yes or no.
        1. the task 'write the blog'
        > yes
        write the blog: 80%.
        > what's open?
        2. buy stamps
        > done 2
        Done on the to-do list: buy stamps.
        > add milk to the shopping list
        > remove 1
        Do you mean this one? Say yes or no.
        > no
        > show the shopping list
        > remove 1
        Removed from the shopping list: milk.
    """,
    "the deadline is that of a task and no reminder that names one": """
        > remind me tomorrow at 9am to check the deadline
        > add a task pay rent by 20 Feb
        > remind me the day before the deadline
        > move the deadline to 25 Feb
        Moved: pay rent is due Wed 2026-02-25.
        > list reminders
        Tue 2026-02-10 09:00 · check the deadline
        > add a task call Ann by 22 Feb
        > done call Ann
        > the deadline is now 26 Feb
        Move this one? Say yes or no.
        1. the task 'pay rent'
        > yes
        Moved: pay rent is due Thu 2026-02-26.
        > done pay rent
        > move the deadline to 27 Feb
        No open task has a deadline.
    """,
    "마감은 알림이 아니라 작업의 것이다": """
        > 작업 추가 블로그 쓰기 2월 20일까지
        > 마감 전날 알려줘
        > 마감을 2월 25일로 옮겨줘
        옮겼어요: 블로그 쓰기, 기한 2026-02-25 (수).
        > 알림 목록
        알림이 없어요.
        > 작업 목록
        남은 작업:
        1. 블로그 쓰기
    """,
    "a deadline that is moved to another hour": """
        > add a task call Ann by Friday 18:00
        > move it to 7:30
        Morning or evening? Fri 2026-02-13 07:30 or Fri 2026-02-13 19:30
        > evening
        Moved: call Ann is due Fri 2026-02-13 19:30.
    """,
    "a weekday that does not fit its date": """
        > remind me at 9am on Monday 12 March to call
        The day and the date don't fit: that date is Thu 2026-03-12 09:00. Which one is it?
        > Friday
        The day and the date don't fit: that date is Thu 2026-03-12 09:00. Which one is it?
        > Thursday
        I'll remind you on Thu 2026-03-12 09:00: call (reminder 1).
        > remind me at 9am on Monday 12 March to write
        > on Thursday at 10am
        I'll remind you on Thu 2026-03-12 10:00: write (reminder 2).
        > remind me at 9am on Monday 12 March to read
        > thursday next week
        I'll remind you on Thu 2026-02-19 09:00: read (reminder 3).
    """,
    "a day of the month that is chosen about a date with a wrong weekday": """
        > remind me at 9am on Monday 12 March to call
        > the 12th
        I'll remind you on Thu 2026-03-12 09:00: call (reminder 1).
        > remind me at 9am on Monday 12 March to write
        > Monday the 12th
        The day and the date don't fit: that date is Thu 2026-03-12 09:00. Which one is it?
        > Monday the 9th at 10am
        I'll remind you on Mon 2026-03-09 10:00: write (reminder 2).
        > remind me at 9am on Monday 12 March to read
        > the 12th of April
        I'll remind you on Sun 2026-04-12 09:00: read (reminder 3).
        > 3월 12일 월요일 오전 9시에 운동하라고 알려줘
        > 12일이요
        2026-03-12 (목) 09:00에 알려드릴게요: 운동하기 (알림 4번).
    """,
    "minutes for the hour that a question is about": """
        > remind me on Friday at 5 to feed the cat
        > half past
        Morning or evening? Fri 2026-02-13 05:30 or Fri 2026-02-13 17:30
        > evening
        I'll remind you on Fri 2026-02-13 17:30: feed the cat (reminder 1).
        > remind me tomorrow at 5 to water the plants
        > evening, half past
        I'll remind you on Tue 2026-02-10 17:30: water the plants (reminder 2).
        > move it to 6
        Morning or evening? Tue 2026-02-10 06:00 or Tue 2026-02-10 18:00
        > quarter to
        Morning or evening? Tue 2026-02-10 05:45 or Tue 2026-02-10 17:45
        > half past
        Morning or evening? Tue 2026-02-10 05:30 or Tue 2026-02-10 17:30
        > in the morning
        Moved: water the plants. It comes on Tue 2026-02-10 05:30.
        > remind me every Monday at 5 to run
        > half past in the evening
        I'll remind you every Monday at 17:30: run. The first time is Mon 2026-02-09 17:30 (reminder R1).
        > remind me tomorrow to read
        > evening, half past
        Still open: At what time on Tue 2026-02-10? Say it like 9am or 18:30. (read)
        > no
        > add a task call Ann by Friday 18:00
        > move it to 7
        > half past
        Morning or evening? Fri 2026-02-13 07:30 or Fri 2026-02-13 19:30
    """,
    "물어본 시의 분": """
        > 내일 5시에 산책하라고 알려줘
        > 반
        오전인가요, 오후인가요? 2026-02-10 (화) 05:30 또는 2026-02-10 (화) 17:30
        > 오후
        2026-02-10 (화) 17:30에 알려드릴게요: 산책하기 (알림 1번).
        > 매주 월요일 5시에 운동하라고 알려줘
        > 오전 반이요
        매주 월요일 05:30에 알려드릴게요: 운동하기.
        > 오후 반
        그건 제가 할 수 없어요.
    """,
    "a request that names a moved deadline": """
        > add a task move house by 20 Feb
        > add a task change of address by 21 Feb
        > remind me tomorrow at 9 to move the blog deadline to 25 Feb
        I'll remind you on Tue 2026-02-10 09:00: move the blog deadline to 25 Feb (reminder 1).
        > add a task move the deadline to 25 Feb
        On the dashboard: move the deadline to 25 Feb (no deadline).
        > todo move the deadline to 25 Feb
        Added to the to-do list: move the deadline to 25 Feb.
        > who moved the deadline to Friday
        I can't do that: I only understand simple requests.
        > move house is now due 25 Feb
        Moved: move house is due Wed 2026-02-25.
        > the change of address deadline is 26 Feb
        Moved: change of address is due Thu 2026-02-26.
    """,
    "an agenda of a day that is not clear": """
        > remind me on 20 Feb at 9am to call mum
        > what's on next friday?
        That can mean several things. Which one?
        1. Fri 2026-02-13
        2. Fri 2026-02-20
        > 2
        Friday, 20 February 2026:
        09:00 call mum
        > what's on 2/3?
        That can mean several things. Which one?
        1. Mon 2026-03-02
        2. Wed 2027-02-03
        > no
        > what's on 20 feb at 5?
        Friday, 20 February 2026:
        > what's on monday 12 feb?
        The day and the date don't fit: that date is Thu 2026-02-12 09:00. Which one is it?
        > what is due next friday?
        That can mean several things. Which one?
    """,
    "아무도 보지 못한 번호": """
        > 작업 추가 블로그 쓰기
        > 1번 완료
        이것을 완료할까요? 네 또는 아니요로 답해 주세요.
        > 네
        완료했어요: 블로그 쓰기.
    """,
    "번호는 마지막에 보여 준 것을 뜻한다": """
        > 우유 장보기 목록에 추가
        > 내일 오후 6시에 엄마한테 전화하라고 알려줘
        > 알림 목록
        > 1번 지워줘
        이 알림을 취소할까요: 엄마한테 전화하기?
        > 아니
        > 작업 추가 블로그 쓰기
        > 남은 작업
        > 1번 지워줘
        이 작업을 취소할까요?
        1. 블로그 쓰기
        > 네
        대시보드에서 뺐어요: 블로그 쓰기.
        > 엄마한테 연락 알림 취소해줘
        이 알림을 취소할까요?
    """,
    "the same question in two languages": """
        > 내일 오후 6시에 엄마한테 전화하라고 알려줘
        > list reminders
        > add a task write the blog
        > done 1
        Which one is done?
        > 1번 완료
        어느 것을 끝냈나요?
        > 아니
        알겠어요. 그만둘게요.
        not: Which one is done?
        > what's open?
        write the blog
    """,
    "자정은 어느 날인지 여쭤본다": """
        > 내일 밤 12시에 전화하라고 알려줘
        2026-02-10 (화) 00:00 또는 2026-02-11 (수) 00:00
        > 두 번째
        2026-02-11 (수) 00:00에 알려드릴게요: 전화하기
    """,
    "무엇이 떨어졌는지 모르면 여쭤본다": """
        > 우유 장보기 목록에 추가
        > 돈 다 썼어
        장보기 목록에 넣을까요: 돈?
        > 아니
        알겠어요. 그만둘게요.
        > 핸드폰 필요해
        > 네
        장보기 목록에 추가했어요: 핸드폰.
        > 도움이 필요해
        1. '도움'
        2. '도움이'
        > 아니
        알겠어요. 그만둘게요.
        > 20분마다 물 마시라고 알려줘
        20분마다 알려드릴게요: 물 마시기.
    """,
    "tasks without a to-do list": """
        > add a task write the blog
        > list my tasks
        Open tasks:
        > what are my tasks?
        1. write the blog
        > list tasks
        1. write the blog
        > 할 일 뭐 남았어?
        1. write the blog
    """,
    "corrections that name no half of the day": """
        > remind me tomorrow at 18:00 to eat
        18:00: eat
        > no, 6:30
        Morning or evening? Tue 2026-02-10 06:30 or Tue 2026-02-10 18:30
        > the second
        Moved: eat. It comes on Tue 2026-02-10 18:30.
        > make it 9:15
        Morning or evening? Tue 2026-02-10 09:15 or Tue 2026-02-10 21:15
        > morning
        It comes on Tue 2026-02-10 09:15.
        > actually 8:30
        It comes on Tue 2026-02-10 08:30.
        > remind me at 8pm to call, no wait, 9:15
        I'll remind you on Mon 2026-02-09 21:15: call
        > remind me at 11pm to go, no wait, 12:30
        When?
    """,
    "오전도 오후도 말하지 않은 수정": """
        > 내일 오후 6시에 밥 먹으라고 알려줘
        18:00에 알려드릴게요: 밥 먹기
        > 아니 8시 반
        오전인가요, 오후인가요? 2026-02-10 (화) 08:30 또는 2026-02-10 (화) 20:30
        > 10시로 미뤄줘
        오전인가요, 오후인가요? 2026-02-10 (화) 10:00 또는 2026-02-10 (화) 22:00
    """,
    "answers that keep what was asked": """
        > remind me on the last day of the month to send the invoice
        At what time?
        > every month
        At what time?
        > 9am
        I'll remind you every month on the last day at 09:00: send the invoice.
        > remind me next week to call the bank
        I'm not sure which words are the time.
        > Saturday at 10am
        I'll remind you on Sat 2026-02-21 10:00: call the bank
        > remind me next month to call the bank
        I'm not sure which words are the time.
        > Saturday at 10am
        Still open: I'm not sure which words are the time.
        > never mind
        > remind me at 5pm sharp on Sunday to cook
        I'll remind you on Sun 2026-02-15 17:00: cook
        > add a task pay the electrician by the weekend
        When?
        > 9am
        When?
        > Saturday
        On the dashboard: pay the electrician, due Sat 2026-02-14 09:00.
        > add a task buy wine and remind me the day before
        On the dashboard: buy wine (no deadline).
        Do you mean this one?
    """,
    "질문을 잃지 않는 답": """
        > 다음 주에 은행에 전화하라고 알려줘
        어디까지가 시각인지 확실하지 않아요.
        > 토요일 10시
        2026-02-21 (토) 10:00에 알려드릴게요: 은행에 전화하기
    """,
    "a slip in a name is asked about, never taken for granted": """
        > add milk to the shopping list
        Added to the shopping list: milk.
        > todo call mum
        Added to the to-do list: call mum.
        > add a task write the blog
        On the dashboard: write the blog (no deadline).
        > remind me tomorrow at 6pm to ring grandma
        I'll remind you on Tue 2026-02-10 18:00: ring grandma (reminder 1).
        > done cal mum
        Do you mean this one? Say yes or no.
        1. the to-do 'call mum'
        > yes
        Done on the to-do list: call mum.
        > untick cal mum
        Do you mean this one? Say yes or no.
        1. 'call mum'
        > yes
        Open again on the to-do list: call mum.
        > remove mlik
        Do you mean this one? Say yes or no.
        1. 'milk'
        > no
        All right, I leave it.
        > blgo 50%
        Do you mean this one? Say yes or no.
        1. the task 'write the blog'
        > yes
        write the blog: 50%.
        > move write teh blog to friday
        Move this one? Say yes or no.
        1. the task 'write the blog'
        > yes
        Moved: write the blog is due Fri 2026-02-13.
        > add a task pay rent by 20 Feb
        > remind me the day before pay rnt is due
        Do you mean this one? Say yes or no.
        1. the task 'pay rent'
        > yes
        I'll remind you on Thu 2026-02-19 09:00: 'pay rent' is due Fri 2026-02-20
        > move rign grandma to 8pm
        Move this one? Say yes or no.
        1. Tue 2026-02-10 18:00 · ring grandma
        > yes
        Moved: ring grandma. It comes on Tue 2026-02-10 20:00.
        > done rum
        I know of nothing open like 'rum'.
    """,
    "an undo among other requests takes the last change back": """
        > add milk to the shopping list
        Added to the shopping list: milk.
        > undo that and add butter to the shopping list
        Off the shopping list again: milk.
        Added to the shopping list: butter.
    """,
    "milk, eggs and bread are three things": """
        > add milk, eggs and bread
        On which list shall I put milk, eggs, bread?
        > shopping
        Added to the shopping list: milk, eggs, bread.
        > add tea to the list
        Added to the shopping list: tea.
        > show the list
        1. milk
        2. eggs
        > done 2
        Done on the shopping list: eggs.
    """,
    "two to-dos": """
        > todo a, b
        Added to the to-do list: a, b.
        > show todo
        1. a
        2. b
    """,
    "what is done is counted": """
        > todo a, b
        Added to the to-do list: a, b.
        > done a
        Done on the to-do list: a.
        > show todo
        2. b
        (Done: 1. 'clear done' takes them off the to-do list.)
        > 완료 항목 정리해줘
        할 일 목록에서 완료한 항목을 정리했어요: 1개.
    """,
    "from a day to another can mean three things": """
        > remind me from Tuesday to Thursday at 9am to water the plants
        That can mean several things. Which one?
        1. each day: every day from Tue 2026-02-10 to Thu 2026-02-12 at 09:00
        2. every week: every Tuesday, Wednesday and Thursday at 09:00
        3. just once: Tue 2026-02-10 09:00
        > each day
        I'll remind you on Tue 2026-02-10 09:00: water the plants (reminder 1).
        I'll remind you on Wed 2026-02-11 09:00: water the plants (reminder 2).
        I'll remind you on Thu 2026-02-12 09:00: water the plants (reminder 3).
        > undo that
        Cancelled: water the plants.
        > list reminders
        There are no reminders.
        > remind me to water the plants from Friday to Monday
        At what time on Fri 2026-02-13?
        > 9am
        1. each day: every day from Fri 2026-02-13 to Mon 2026-02-16 at 09:00
        > the second
        I'll remind you every Monday, Friday, Saturday and Sunday at 09:00: water the plants.
        > remind me every day from Tuesday to Wednesday at 8am to stretch
        1. each day: every day from Tue 2026-02-10 to Wed 2026-02-11 at 08:00
        not: just once
        > never mind
        All right, I leave it.
        > remind me at 9am from Friday to Monday to water the plants
        1. each day: every day from Fri 2026-02-13 to Mon 2026-02-16 at 09:00
        > never mind
        > remind me every Monday to Friday at 9am to run
        I'll remind you every weekday at 09:00: run.
    """,
    "월요일부터 수요일까지": """
        > 화요일부터 목요일까지 오전 9시에 화분에 물 주라고 알려줘
        여러 가지로 읽을 수 있어요. 어느 쪽인가요?
        1. 매일: 2026-02-10 (화)부터 2026-02-12 (목)까지 날마다 09:00
        2. 매주: 매주 화요일 수요일 목요일 09:00
        3. 한 번만: 2026-02-10 (화) 09:00
        > 한 번만
        2026-02-10 (화) 09:00에 알려드릴게요: 화분에 물 주기 (알림 1번).
        > 화요일부터 수요일까지 매일 오전 9시에 약 먹으라고 알려줘
        not: 한 번만
        > 매일이요
        2026-02-10 (화) 09:00에 알려드릴게요: 약 먹기 (알림 2번).
        2026-02-11 (수) 09:00에 알려드릴게요: 약 먹기 (알림 3번).
    """,
    "what is taken back is as it was": """
        > add a task write the blog by 12 Feb
        > blog 40%
        > blog is blocked: no time
        > done blog
        Done: write the blog.
        > undo
        Open again: write the blog.
        > what's open?
        1. write the blog (40%, due Thu 2026-02-12, blocked)
        > unblock the blog
        > undo
        write the blog is noted as blocked (no time).
    """,
    "두 가지 부탁": """
        > 내일 오전 10시에 회의라고 알려주고 날씨 알려줘
        2026-02-10 (화) 10:00에 알려드릴게요: 회의 (알림 1번).
        이 부분은 알아듣지 못했어요: '날씨 알려줘'
    """,
    "a deadline is moved where its word is said": """
        > add a task write the blog by 12 Feb
        > remind me the day before the blog is due
        > move the blog to 21 Feb
        Which one shall I move?
        > never mind
        > move the deadline of the blog to 20 Feb
        Moved: write the blog is due Fri 2026-02-20.
    """,
    "two wishes in two lines": r"""
        > todo buy stamps\nremind me at 5pm to cook
        Added to the to-do list: buy stamps.
        I'll remind you on Mon 2026-02-09 17:00: cook (reminder 1).
    """,
    "two things with a time each are asked about one by one": """
        > pay rent tomorrow and call mum on Friday
        Shall I remind you of 'pay rent'? At what time on Tue 2026-02-10?
        I'll ask about 'call mum' after that.
        > 9am
        I'll remind you on Tue 2026-02-10 09:00: pay rent (reminder 1).
        Next: Shall I remind you of 'call mum'? At what time on Fri 2026-02-13?
        > what time is it?
        It's 08:30
        > 10:30
        I'll remind you on Fri 2026-02-13 10:30: call mum (reminder 2).
    """,
    "one to-do or two is asked": """
        > todo buy stamps and call mum
        Is that one or 2?
        2. Several: buy stamps · call mum
        > two
        Added to the to-do list: buy stamps, call mum.
    """,
    "morning or evening": """
        > remind me at 9 to call mum
        Morning or evening?
        > evening
        I'll remind you on Mon 2026-02-09 21:00: call mum (reminder 1).
        > remind me tomorrow at 3 to call mum
        Morning or evening?
        > in the afternoon please
        I'll remind you on Tue 2026-02-10 15:00: call mum (reminder 2).
    """,
    "오전인가요, 오후인가요": """
        > 오늘 9시에 약 먹으라고 알려줘
        오전인가요, 오후인가요?
        > 저녁이요
        2026-02-09 (월) 21:00에 알려드릴게요: 약 먹기 (알림 1번).
        > 내일 약 먹으라고 알려줘
        몇 시에요, 2026-02-10 (화)?
        > 아침 7시
        2026-02-10 (화) 07:00에 알려드릴게요: 약 먹기 (알림 2번).
        > 10분 뒤에 빨래 널라고 알려줘
        2026-02-09 (월) 08:40에 알려드릴게요: 빨래 널기 (알림 3번).
    """,
    "what is not said is asked": """
        > remind me
        What should I remind you of?
        > call mum
        When?
        > in 10 minutes
        I'll remind you on Mon 2026-02-09 08:40: call mum (reminder 1).
        > remind me today at 7:00 to jog
        That time is past (Mon 2026-02-09 07:00). When, then?
        > tomorrow
        I'll remind you on Tue 2026-02-10 07:00: jog (reminder 2).
        > remind me tomorrow at 25:00 to jog
        There is no such time.
        > never mind
        All right, I leave it.
    """,
    "what repeats": """
        > remind us every Monday at 9 to take out the bins
        I'll remind everyone every Monday at 09:00: take out the bins. The first time is Mon
        > 매일 아침 7시에 약 먹으라고 알려줘
        매일 07:00에 알려드릴게요: 약 먹기. 첫 번째는 2026-02-10 (화) 07:00이에요 (알림 R2번).
        > what reminders do I have?
        R1. every Monday at 09:00, next Mon 2026-02-09 09:00 · take out the bins
        R2. every day at 07:00, next Tue 2026-02-10 07:00 · 약 먹기
        > what's on tomorrow?
        • 07:00 약 먹기
        > what's on wednesday?
        • 07:00 약 먹기
        > cancel reminder R1
        Cancelled: take out the bins.
        > list reminders
        R2. every day at 07:00
        > remind me every 5 minutes to blink
        That is too often
        > every hour
        I'll remind you every hour: blink.
    """,
    "timers and getting up": """
        > set a timer for 3 minutes
        I'll remind you on Mon 2026-02-09 08:33: the timer is over (reminder 1).
        > 3분 타이머
        2026-02-09 (월) 08:33에 알려드릴게요: 타이머가 끝났어요 (알림 2번).
        > wake me at 6:30
        I'll remind you on Tue 2026-02-10 06:30: time to get up (reminder 3).
        > wake me up at 7
        I'll remind you on Tue 2026-02-10 07:00: time to get up (reminder 4).
    """,
    "clear the list": """
        > add tea, rice to the shopping list
        Added to the shopping list: tea, rice.
        > clear the list
        Take everything off the shopping list, 2 in all? Say yes or no.
        > no
        All right, I leave it.
        > clear the list
        Take everything off the shopping list, 2 in all? Say yes or no.
        > yes
        Took everything off the shopping list: 2.
    """,
    "리마인더": """
        > 내일 9시에 알림 보내줘
        2026-02-10 (화) 09:00에 알려드릴게요 (알림 1번).
        > 2시간 후에 리마인더 보내줘
        2026-02-09 (월) 10:30에 알려드릴게요 (알림 2번).
        > 2시간 후에 운동 알림 보내줘
        2026-02-09 (월) 10:30에 알려드릴게요: 운동 (알림 3번).
        > 마감 전날 알려줘
        마감이 있는 작업이 없어요.
        > 작업 추가 블로그 쓰기 2월 20일까지
        대시보드에 올렸어요: 블로그 쓰기, 기한 2026-02-20 (금).
        > 마감 전날 알려줘
        2026-02-19 (목) 09:00에 알려드릴게요: '블로그 쓰기' 마감이 2026-02-20 (금) (알림 4번).
        > 블로그 마감 전날 저녁 6시에 알림 보내줘
        2026-02-19 (목) 18:00에 알려드릴게요
        > 알림 취소해줘
        어느 알림을 취소할까요?
        3. 2026-02-09 (월) 10:30 · 운동
        > 3
        취소했어요: 운동.
    """,
    "알림 하나": """
        > 10분 뒤에 회의라고 알려줘
        2026-02-09 (월) 08:40에 알려드릴게요: 회의 (알림 1번).
        > 알림 취소해줘
        취소했어요: 회의.
        > 알림 목록
        알림이 없어요.
    """,
    "waiting moves nothing": """
        > add a task: book the camping site by Friday
        On the dashboard: book the camping site, due Fri 2026-02-13.
        > wait 60 seconds
        I can't do that
        > wait a minute
        I can't do that
        > wait, Saturday
        Moved: book the camping site is due Sat 2026-02-14.
    """,
    "deadlines": """
        > add a task: pay rent tomorrow
        On the dashboard: pay rent, due Tue 2026-02-10.
        > 할 일 추가 보고서 쓰기 금요일까지
        대시보드에 올렸어요: 보고서 쓰기, 기한 2026-02-13 (금).
        > new task fix the door by Feb 30
        I haven't put 'fix the door' on the dashboard: There is no such day.
        > 1 March at 6pm
        On the dashboard: fix the door, due Sun 2026-03-01 18:00.
        > add a task fix the sink by yesterday
        I haven't put 'fix the sink' on the dashboard: That time is past
        > 됐어
        All right, I leave it.
        > what is due?
        1. pay rent (0%, due Tue 2026-02-10)
        3. fix the door (0%, due Sun 2026-03-01 18:00)
        > 오늘 뭐 있어?
        1. pay rent (0%, 기한 2026-02-10 (화))
        > what's on tomorrow?
        1. pay rent (0%, due Tue 2026-02-10)
        > rent is blocked: no money
        pay rent is noted as blocked (no money).
        > what's open?
        1. pay rent (0%, due Tue 2026-02-10, blocked)
        > rent is not blocked any more
        pay rent is no longer blocked.
        > blog is blocked
        No open task fits 'blog'.
    """,
    "numbers mean the list that was shown last": """
        > todo buy stamps, call Bob
        Added to the to-do list: buy stamps, call Bob.
        > add a task write the essay by Friday
        On the dashboard: write the essay, due Fri 2026-02-13.
        > add a task write the essay
        On the dashboard: write the essay (no deadline).
        > done 1
        Which one is done?
        1. the task 'write the essay'
        2. the to-do 'buy stamps'
        > 2
        Done on the to-do list: buy stamps.
        > what's open?
        1. write the essay
        2. write the essay
        3. call Bob
        > done 3
        Done on the to-do list: call Bob.
        > done 9
        There is no 9 on the list I showed last.
        > done essay
        Which one is done?
        1. the task 'write the essay' (0%,
        > the first
        Done: write the essay.
    """,
    "a no settles which reminder": """
        > remind us at 8pm to call now or never
        (reminder 1)
        > remind us at 9pm to sing
        (reminder 2)
        > cancel reminder
        Which reminder?
        > nothing to do with it, I know
        not: Cancelled
        > no
        All right, I leave it.
        > cancel reminder
        Which reminder?
        > nope
        All right, I leave it.
        not: Which reminder?
        > 알림 취소해줘
        어느 알림을 취소할까요?
        > 아니
        알겠어요. 그만둘게요.
        > list reminders
        call now or never
        sing
    """,
    "the next of two questions says what it is about": """
        > remind me to call mum
        When? Say it like: tomorrow at 9:00.
        not: (call mum)
        > remind me to buy a gift
        When? Say it like: tomorrow at 9:00. (buy a gift)
        > tomorrow at 9am
        buy a gift (reminder 1).
        Next: When? Say it like: tomorrow at 9:00. (call mum)
        > tomorrow at 10am
        call mum (reminder 2).
    """,
    "two equal questions are one": """
        > remind us at 8pm to call
        (reminder 1)
        > remind us at 9pm to sing
        (reminder 2)
        > cancel reminder
        Which reminder?
        > cancel reminder
        Which reminder?
        > the second one
        Cancelled: sing.
        not: Which reminder?
    """,
    "each reminder has a number of its own": """
        > remind me every Monday at 9am to take out the bins
        (reminder R1)
        > remind me tomorrow at 10am to practise piano
        (reminder 1)
        > list reminders
        1. Tue 2026-02-10 10:00
        R1. every Monday at 09:00
        > cancel reminder 1
        Cancelled: practise piano.
        > remind me every Tuesday at 9am to swim
        (reminder R2)
        > cancel reminder R1
        Cancelled: take out the bins.
        > list reminders
        R2. every Tuesday at 09:00
        > cancel reminder 1
        No reminder fits '1'.
        > 알림 R2번 취소
        취소했어요: swim.
    """,
    "milk is on the only list": """
        > add milk, eggs to the shopping list
        Added to the shopping list: milk, eggs.
        > done milk
        Done on the shopping list: milk.
        > i got the eggs
        Done on the shopping list: eggs.
    """,
    "a done never cancels a reminder by itself": """
        > remind me tomorrow at 10am to practise piano
        (reminder 1)
        > list reminders
        1. Tue 2026-02-10 10:00
        > done 1
        Cancel this reminder: practise piano? Say yes or no.
        > no
        All right, I leave it.
        > add a task write the essay
        On the dashboard: write the essay
        > list reminders
        1. Tue 2026-02-10 10:00
        > 1번 완료
        어느 것을 끝냈나요?
        작업 'write the essay'
        알림 'practise piano'
        > 1
        완료했어요: write the essay.
    """,
    "my reminders are mine": """
        Tom> remind me tomorrow at 10am to swim
        (reminder 1)
        > remind me tomorrow at 11am to run
        (reminder 2)
        > remind me tomorrow at 12:00 to eat
        (reminder 3)
        > cancel all my reminders
        Cancel Jane's reminders, 2 in all?
        run
        eat
        Tom> yes
        I asked Jane: only Jane or the owner can answer that.
        Tom> 네
        Jane님께 여쭤본 거예요.
        > yes
        Cancelled reminders: 2.
        > list reminders
        1. Tue 2026-02-10 10:00 · Reminder for Tom: swim
        > cancel all my reminders
        None of the reminders here is yours (1).
        > cancel all reminders
        Cancel everybody's reminders in this chat, 1 in all?
        swim
        Owner> yes
        Cancelled reminders: 1.
    """,
    "others fill in nothing": """
        > add milk and eggs
        On which list
        Tom> no
        I asked Jane
        Tom> shopping
        I asked Jane
        > shopping
        Added to the shopping list: milk, eggs.
    """,
    "a list is shown while another question waits": """
        > add thing0
        On which list shall I put thing0?
        > show the list
        The to-do list doesn't exist yet.
        not: On which list
        > show the shopping list
        The shopping list doesn't exist yet.
        not: On which list
        > shopping
        Added to the shopping list: thing0.
    """,
    "the last reminder is moved": """
        > remind me on Friday at 5pm to call Lena
        (reminder 1)
        > no, Saturday
        Moved: call Lena. It comes on Sat 2026-02-14 17:00.
        > actually make it 6pm
        It comes on Sat 2026-02-14 18:00.
        > move it to 10
        Morning or evening?
        > morning
        It comes on Sat 2026-02-14 10:00.
        > an hour later
        It comes on Sat 2026-02-14 11:00.
        > snooze 20 minutes
        It comes on Sat 2026-02-14 11:20.
        > reminder 1 to 10am
        It comes on Sat 2026-02-14 10:00.
        > undo that
        It comes on Sat 2026-02-14 11:20.
        > 아니 일요일
        2026-02-15 (일) 11:20에 알려드릴게요.
        > 6시로 바꿔줘
        오전인가요, 오후인가요?
        > 오후
        2026-02-15 (일) 18:00에 알려드릴게요.
        > 30분 미뤄줘
        2026-02-15 (일) 18:30에 알려드릴게요.
        > list reminders
        1. Sun 2026-02-15 18:30
        not: 2.
    """,
    "what repeats is moved": """
        > remind me every Monday at 9am to take out the bins
        (reminder R1)
        > make it 8am
        Changed: take out the bins comes every Monday at 08:00 now
        > 알림 R1번 오전 7시로 바꿔줘
        매주 월요일 07:00
    """,
    "what repeats on several days of every other week is moved and put back": """
        > 격주 월요일 수요일 오전 8시에 물 주라고 알려줘
        격주 월요일 수요일 08:00에 알려드릴게요
        > show reminders
        R1. every other Monday and Wednesday at 08:00
        > move reminder R1 to 9am
        every other Monday and Wednesday at 09:00
        > undo
        > 알림 보여줘
        R1. 격주 월요일 수요일 08:00
    """,
    "what repeats at the end of every other month is moved and put back": """
        > remind me every 2 months on the last day at 9:00 to pay the rent
        I'll remind you every 2 months on the last day at 09:00: pay the rent
        > 알림 보여줘
        R1. 2개월마다 마지막 날 09:00
        > 알림 R1번 오전 8시로 바꿔줘
        2개월마다 마지막 날 08:00
        > 되돌려 줘
        > show reminders
        R1. every 2 months on the last day at 09:00
    """,
    "two readings": """
        > remind me at half past 7 to eat
        Morning or evening?
        > evening
        I'll remind you on Mon 2026-02-09 19:30: eat
        > remind me tomorrow at 3 to call
        Morning or evening?
        > the second one
        I'll remind you on Tue 2026-02-10 15:00: call
        > remind me at half past 7 to drink
        Morning or evening?
        > 7:30pm
        I'll remind you on Mon 2026-02-09 19:30: drink
        > remind me next friday at 9am to rest
        Which one?
        > the second
        I'll remind you on Fri 2026-02-20 09:00: rest
        > 내일 3시에 전화하라고 알려줘
        오전인가요, 오후인가요?
        > 두 번째
        2026-02-10 (화) 15:00에 알려드릴게요: 전화하기
        > 내일 4시에 전화하라고 알려줘
        오전인가요, 오후인가요?
        > 오후 4시요
        2026-02-10 (화) 16:00에 알려드릴게요: 전화하기
    """,
    "said otherwise in one breath": """
        > remind us at 8pm to call, no wait, 9pm
        I'll remind everyone on Mon 2026-02-09 21:00: call (reminder 1).
        > remind me at 9am to call mum tomorrow
        I'll remind you on Tue 2026-02-10 09:00: call mum (reminder 2).
        > remind me at 5 past 9 tomorrow to call
        I'll remind you on Tue 2026-02-10 09:05: call (reminder 3).
    """,
    "reminders of others": """
        > don't remind me about the bins any more
        There are no reminders.
        > remind me every Monday at 9am to take out the bins
        (reminder R1)
        > don't remind me about the bins any more
        Cancel this reminder: take out the bins?
        > yes
        Cancelled: take out the bins.
        > Lena's birthday is on 14 May, remind us every year
        At what time
        > 9am
        every year on 14 May at 09:00: Lena's birthday.
    """,
    "한국어 두 가지": """
        > 내일 오전 9시에 월세 내라고 하고 금요일 오후 5시에 엄마한테 전화하라고 알려줘
        2026-02-10 (화) 09:00에 알려드릴게요: 월세 내기 (알림 1번).
        2026-02-13 (금) 17:00에 알려드릴게요: 엄마한테 전화하기 (알림 2번).
        > 정오에 점심 먹으라고 알려줘
        12:00에 알려드릴게요: 점심 먹기
        > 내일 아침 8시에 아침 먹으라고 알려줘
        08:00에 알려드릴게요: 아침 먹기
        > 매주 월요일 오전 8시에 쓰레기 버리라고 알려줘
        쓰레기 버리기
        > 내일 저녁 먹으라고 알려줘
        몇 시에요
        > 저녁 7시
        19:00에 알려드릴게요: 저녁 먹기
    """,
    "deadlines that are no day": """
        > add a task pay the electrician by end of the month
        On the dashboard: pay the electrician, due Sat 2026-02-28.
        > add a task pay the plumber by the weekend
        I haven't put 'pay the plumber' on the dashboard: When?
        > Saturday
        On the dashboard: pay the plumber, due Sat 2026-02-14.
        > no, Sunday
        Moved: pay the plumber is due Sun 2026-02-15.
        > add Ben & Jerry's and milk & bread to the shopping list
        Added to the shopping list: Ben & Jerry's, milk, bread.
        > 작업 추가 보고서 쓰기 이번 주말까지
        '보고서 쓰기'을(를) 아직 올리지 않았어요.
    """,
    "the question mark of a polite question": """
        > Could you please remind us in 20 minutes that the cake is in the oven?
        I'll remind everyone on Mon 2026-02-09 08:50: the cake is in the oven (reminder 1).
    """,
    "what was done is taken back": """
        > add milk, eggs to the shopping list
        Added to the shopping list: milk, eggs.
        > undo that
        Off the shopping list again: milk, eggs.
        > undo
        Back on the shopping list: milk, eggs.
        > done milk
        Done on the shopping list: milk.
        > undo that
        Open again on the shopping list: milk.
        > clear the shopping list
        Say yes or no.
        > yes
        Took everything off the shopping list: 2.
        > 되돌려줘
        milk, eggs
    """,
    "what is not wanted is not set": """
        > remind me at 5pm to call, actually no
        All right, I leave it.
        > list reminders
        There are no reminders.
        > 내일 엄마한테 전화하라고 하지 마
        그건 제가 할 수 없어요.
        > remind me at 5pm to call
        (reminder 1)
        > remind me at 5pm to call
        You have that reminder already: call, Mon 2026-02-09 17:00.
        > 알림 그만
        이 알림을 취소할까요
        > 아니요
        알겠어요.
        > get the kids at 3pm
        Shall I remind you? get the kids: Mon 2026-02-09 15:00.
        > no
        All right, I leave it.
        > need bread at 6pm
        Shall I remind you? need bread
        > done
        Still open: Shall I remind you?
        > no
        All right, I leave it.
        > cancel it
        Cancel this reminder: call?
        > yes
        Cancelled: call.
        > undo
        I'll remind you on Mon 2026-02-09 17:00: call (reminder 2).
        > undo
        Cancelled: call.
    """,
    "an unknown wish": """
        > write me a poem
        I can't do that: I only understand simple requests. Say 'help' to see which.
        > add milk to the shopping list and what's the weather like?
        Added to the shopping list: milk.
        I didn't understand this part: 'what's the weather like?'.
        > yes
        I asked nothing just now.
        >
        Yes? Say 'help' to see what I can do.
    """,
    "only who was asked answers": """
        > remind me at 9 to feed the cat
        Morning or evening?
        Tom> evening
        I asked Jane
        Tom> nothing
        I asked Jane
        > evening
        Mon 2026-02-09 21:00: feed the cat
        > add tea
        On which list
        Tom> shopping
        I asked Jane
        Owner> shopping
        Added to the shopping list: tea.
    """,
    "what is not done stays as it is": """
        > add a task paint the door by Friday
        > what's open?
        paint the door
        > not done 1
        not: Morning
        not: Moved
        > no 1
        not: Moved
        not: Morning
        > done 1
        Done: paint the door
        > not done 1
        Open again: paint the door
        > 1번 안 했어
        not: 아직 없어요
        > 1 isn't done
        not: exist
    """,
    "before something with a time": """
        > remind me an hour before the meeting at 3pm
        Mon 2026-02-09 14:00: the meeting
        > remind me 2 hours before the match on Sunday at 15:00
        Sun 2026-02-15 13:00: the match
        > 오후 3시 회의 30분 전에 알려줘
        2026-02-09 (월) 14:30에 알려드릴게요: 회의
        > 내일 오후 2시 비행기 3시간 전에 알려줘
        2026-02-10 (화) 11:00에 알려드릴게요: 비행기
        > 금요일 오후 5시 마감인데 하루 전에 알려줘
        2026-02-12 (목) 17:00에 알려드릴게요: 마감
    """,
    "limits of what repeats are refused": """
        > remind me every day at 9am to take pills except Sundays
        I can't limit
        > remind me every hour from 9 to 5 to drink water
        I can't limit
        > remind me every Monday at 9am to run starting next Monday
        I can't limit
        > remind me every 2 days at 8pm to take my antibiotics, for a week
        I can't limit
        > remind me every day at 8am to run until December
        I can't limit
        > 12월까지 매일 아침 7시에 약 먹으라고 알려줘
        기간이나 예외
        > remind me every weekday at 8am except Wednesday to run
        I can't limit
        > list reminders
        There are no reminders.
    """,
    "a day that was said is not lost": """
        > remind me to water the plants tomorrow at half seven in the morning
        > 7:30am
        I'll remind you on Tue 2026-02-10 07:30: water the plants (reminder 1).
    """,
    "the second wish is on the day of the first": """
        > remind me to call mum on Sunday and dad at noon
        At what time on Sun 2026-02-15?
        Sun 2026-02-15 12:00: dad
        > 9am
        Sun 2026-02-15 09:00: call mum
        > 토요일 오전 9시에 엄마한테 전화하고 정오에 아빠한테 전화하라고 알려줘
        2026-02-14 (토) 09:00
        2026-02-14 (토) 12:00
    """,
    "an earlier time is no yes": """
        > meeting at 7pm
        Shall I remind you?
        > an hour earlier
        Mon 2026-02-09 18:00: meeting
        > cancel 7pm
        not: Shall
    """,
    "a list that is emptied loses what was there": """
        > add milk, eggs to the shopping list
        Added to the shopping list
        > empty the shopping list and add rice
        Take everything off the shopping list, 2 in all?
        Added to the shopping list: rice.
        > yes
        Took everything off the shopping list: 2.
        > show the shopping list
        rice
        not: milk
        > 장보기 목록에 우유 추가해줘
        > 장보기 목록 비우고 쌀 추가해줘
        1개를 모두 지울까요?
        쌀
    """,
    "no words become a list by themselves": """
        > add tea
        On which list
        > ad sugar
        Begin a new list
        > no
        All right
        > 차 추가
        어느 목록
        > 몰라
        새 목록
        > 아니
        그만둘게요
    """,
    "lists are meant by their names": """
        > 여행 준비물 목록에 충전기 추가해줘
        여행 준비물 목록에 추가했어요: 충전기
        > add a saw to the hardware list
        Added to the hardware list
        > add milk to the shopping list
        Added
        > add drill to hardware
        Added to the hardware list: drill.
    """,
    "the reminder of another is asked about": """
        > remind me at 9pm to lock up
        (reminder 1)
        Tom> snooze 20 minutes
        Move this one? Say yes or no.
        Reminder for Jane: lock up
        Tom> never mind
        Tom> make it 11pm
        Move this one? Say yes or no.
        Tom> never mind
        Tom> cancel my reminder
        not: Cancelled
        Tom> what are my reminders
        None of the reminders
        > snooze 20 minutes
        21:20
        > what are my reminders
        lock up
    """,
    "undo with a question open lets go of the question": """
        > remind me the day before the rent is due
        > add a task pay the rent by Friday
        > remind me tomorrow at 5pm to eat
        > cancel task 1
        Do you mean this one? Say yes or no.
        > undo
        All right, I leave it.
        > list reminders
        eat
    """,
    "again is asked about where nothing came": """
        > remind me tomorrow at 5pm to eat
        > remind me again in 10 minutes
        What should I remind you of?
        > list reminders
        Tue 2026-02-10 17:00
    """,
    "what is no everyday thing is asked about before it is on a list": """
        > we need more time
        Put more time on the shopping list? Say yes or no.
        > no
        > we need jam
        Added to the shopping list: jam.
        > we need a hammock
        Put hammock on the shopping list?
        > yes
        Added to the shopping list: hammock.
    """,
    "a text keeps what only looks like its time": """
        > remind me to watch 60 minutes on sunday at 7pm
        > sunday 7pm
        What should I remind you of?
        > watch 60 minutes
        Sun 2026-02-15 19:00: watch 60 minutes
    """,
    "nothing is late": """
        > add a task paint the door by Friday
        > what's late?
        No task is late.
        > 늦은 거 있어?
        기한이 지난 작업이 없어요.
        > don't remind Tom at 5pm
        not: 'm at 5pm'
    """,
    "a time in another zone is read where the zone is known": """
        > remind me at 9am London time to call
        Mon 2026-02-09 18:00: call (reminder 1).
        > remind me tomorrow at 9am New York time to call
        Tue 2026-02-10 23:00: call (reminder 2).
        > remind me at 9am US time to call
        I only know the time zone of this chat
        > 미국 시간 오전 9시에 전화하라고 알려줘
        이 대화방의 시간대만 알아요
    """,
    "words that take something back are not dropped": """
        > add eggs, no wait, butter
        I'm not sure which of these you mean
        > remind me tomorrow at 9am to call the bank, not today
        I'm not sure which of these you mean
        > remind me at 6pm instead of 5pm to leave
        I'm not sure which of these you mean
        > 계란 말고 두부 추가
        어느 쪽을 말씀하시는지
    """,
    "a question is no news": """
        > add milk to the shopping list
        Added
        > got the milk?
        not: Done
        > add a task pay rent
        > done rent?
        not: Done
        > 우유 샀어?
        not: 완료
    """,
    "where a line is cut": """
        > add "Dr. Oetker" pizza to the shopping list
        Added to the shopping list: "Dr. Oetker" pizza.
        > task: file the tax return, due 15 December
        file the tax return
        2026-12-15
    """,
    "an older question lapses": """
        > remind me at 9 to feed the cat
        Morning or evening?
        > add tea to the shopping list
        Added to the shopping list: tea.
        I no longer wait for an answer to: Morning or evening?
        > evening
        not: feed the cat
        > remind me in 0 minutes to run
        When, then? (run)
        > never mind
        > remind me at 8pm to run
        (reminder 1)
        > an hour earlier
        It comes on Mon 2026-02-09 19:00.
    """,
    "each takes back only what is their own": """
        > add milk to the shopping list
        Tom> undo
        only Jane or the owner can take it back
        > show shopping
        milk
        Tom> add a task sweep
        Owner> undo that
        Off the dashboard: sweep.
        > undo
        only Owner or the owner
    """,
    "an unknown list is asked about": """
        > add milk to the shopping list
        > add drill to hardware
        What shall I add?
        1. drill to a new list, the hardware list
        2. 'drill to hardware'
        > the second
        Added to the shopping list: drill to hardware.
        > add saw to hardware
        > 1
        Added to the hardware list: saw.
        > add nails to hardware
        Added to the hardware list: nails.
        > add nuts to hardwere
        1. the hardware list
    """,
    "no 2 is no answer, and no, 2 is a time": """
        > remind me today at 9 to call
        Morning or evening? Mon 2026-02-09 09:00 or Mon 2026-02-09 21:00
        > no 2
        Still open: Morning or evening?
        > 9pm
        Mon 2026-02-09 21:00: call (reminder 1).
        > no, Friday
        It comes on Fri 2026-02-13 21:00.
        > I meant 7
        Morning or evening? Fri 2026-02-13 07:00 or Fri 2026-02-13 19:00
        > the second
        It comes on Fri 2026-02-13 19:00.
        > 아니 토요일
        2026-02-14 (토) 19:00
        > 8시 말이야
        오전인가요, 오후인가요? 2026-02-14 (토) 08:00 또는 2026-02-14 (토) 20:00
        > 오후 8시
        2026-02-14 (토) 20:00
    """,
    "the second of two times is not the second of a month": """
        > remind me next Friday at 5pm to leave
        Fri 2026-02-13 17:00 or Fri 2026-02-20 17:00
        > the third
        Still open: 'Next' can mean two days
        > the second
        Fri 2026-02-20 17:00: leave
        > remind me on the last day of the month to pay
        At what time?
        > 9am
        Sat 2026-02-28 09:00 or every month on the last day at 09:00. Which one?
        > 두 번째
        every month on the last day at 09:00: pay
        > remind me between 3 and 4pm to rest
        Mon 2026-02-09 15:00 or Mon 2026-02-09 16:00
        > 4pm
        Mon 2026-02-09 16:00: rest
    """,
    "an end of what is done is no end of what repeats": """
        > remind me every day at 9 to stay until 7
        every day at 09:00: stay until 7
        > 매일 9시에 7시까지 기다리라고 알려줘
        매일 09:00에 알려드릴게요: 7시까지 기다리기
        > remind me every hour until 7 to drink
        I can't limit what repeats
        > remind me every day at 9 until Friday to eat
        I can't limit what repeats
        > 주말 빼고 매일 오전 9시에 운동하라고 알려줘
        기간이나 예외를 둘 수 없어요
        > remind me every Monday at 9am except in August to swim
        every Monday except in Aug at 09:00: swim
        > 8월 빼고 매주 화요일 오전 9시에 수영하라고 알려줘
        매주 화요일 8월 빼고 09:00에 알려드릴게요: 수영하기
    """,
    "a part of a word is not the word": """
        > add shampoo, peanut butter, 6 eggs and carrots to the shopping list
        > got the ham
        nothing open like 'ham'
        > remove car
        isn't on
        > remove nut
        isn't on
        > got the egg
        Done on the shopping list: 6 eggs.
        > remove butter
        Removed from the shopping list: peanut butter.
        > evening please
        not: please:
    """,
    "a reminder of which only some words are said is asked about": """
        > remind me at 5pm to call mum
        > remind me every Monday at 9am to take out the bins
        > forget about ironing the shirts
        No reminder fits 'iron the shirts'
        > cancel the reminder about the dentist
        No reminder fits
        > cancel the reminder to call Bob
        Cancel this one? Say yes or no.
        call mum
        > no
        All right
        > move call Bob to 6pm
        Move this one? Say yes or no.
        > never mind
        All right
        > cancel the reminder to call mum
        Cancelled: call mum.
    """,
    "what is on between two days": """
        > add a task pay rent by Tuesday
        > add a task sweep by Friday
        > remind me on Wednesday at 9am to call
        > what's on from Tuesday to Thursday?
        Tuesday, 10 February 2026 to Thursday, 12 February 2026:
        Wed 2026-02-11 09:00 · call
        1. pay rent
        not: sweep
        > 목요일부터 토요일까지 뭐 있어?
        1. sweep
        not: pay rent
        > what's on this weekend
        Nothing is on Saturday, 14 February 2026 to Sunday, 15 February 2026
    """,
    "an answer with a day of its own is on that day": """
        > remind me to call Ann at 5
        Morning or evening? Tue 2026-02-10 05:00 or Mon 2026-02-09 17:00
        > at 17:00 tomorrow
        I'll remind you on Tue 2026-02-10 17:00: call Ann
    """,
    "a time of day answers no question about the day": """
        > remind me on 3/4 at 9am to call Ann
        Wed 2026-03-04 09:00 or Fri 2026-04-03 09:00. Which one?
        > 10am
        Wed 2026-03-04 10:00 or Fri 2026-04-03 10:00. Which one?
        > the second
        I'll remind you on Fri 2026-04-03 10:00: call Ann
        > remind me next Friday at 9 to call Bob
        Fri 2026-02-13 09:00 or Fri 2026-02-20 09:00. Which one?
        > the one after
        Still open: 'Next' can mean two days here: Fri 2026-02-13 09:00 or Fri 2026-02-20 09:00.
        > never mind
        All right
    """,
    "the only meaning that is left is asked about": """
        > remind me the 31st day of the month at 9:00 to pay
        That can only mean every month on the 31st at 09:00 now. Do you mean that, or when?
        > yes
        I'll remind you every month on the 31st at 09:00: pay. The first time is Tue 2026-03-31 09:00
    """,
    "undo brings the reminder of a completed task back": """
        > add a task write the blog by 20 Feb
        > remind me the day before the blog is due
        (reminder 1)
        > blog done
        Done: write the blog.
        > list reminders
        There are no reminders.
        > undo
        Open again: write the blog.
        Thu 2026-02-19 09:00
        > blog done
        Done: write the blog.
        > blog isn't done
        Open again: write the blog.
        Thu 2026-02-19 09:00
        > list reminders
        Thu 2026-02-19 09:00
    """,
    "a time of day keeps the day that it belongs to": """
        > remind me on the first Monday of the month to call Ann
        That time is past (Mon 2026-02-02 09:00). When, then?
        > 9am
        That can only mean the 1st Monday of each month at 09:00 now. Do you mean that, or when?
        > yes
        I'll remind you the 1st Monday of each month at 09:00: call Ann. The first time is Mon 2026-03-02
        > remind me on 30 feb to rest
        There is no such day.
        > 9am
        There is no such day.
        > never mind
        > remind me at 8am today to call Tom
        That time is past (Mon 2026-02-09 08:00).
        > 7am
        That time is past (Mon 2026-02-09 07:00).
        > never mind
        > remind me on the first Monday of the month to call Eve
        That time is past
        > Sunday 9am
        I'll remind you on Sun 2026-02-15 09:00: call Eve
        > remind me on Monday 12 March to call Liz
        The day and the date don't fit
        > Thursday 9am
        I'll remind you on Thu 2026-03-12 09:00: call Liz
        > remind me on Monday 12 feb to call Bob
        The day and the date don't fit
        > in the evening
        The day and the date don't fit
        > never mind
        > remind me on the second last day of the month to pay
        At what time on Fri 2026-02-27?
        > 9am
        I'll remind you on Fri 2026-02-27 09:00: pay
        > 금요일 밤 12시에 전화하라고 알려줘
        여러 가지로 읽을 수 있어요: 2026-02-13 (금) 00:00 또는 2026-02-14 (토) 00:00. 어느 쪽인가요?
        > 오전 9시
        2026-02-13 (금) 09:00에 알려드릴게요: 전화하기
    """,
    "midnight is that of the day which was asked about": """
        > remind me on Friday at 12 to call
        Morning or evening? Fri 2026-02-13 00:00 or Fri 2026-02-13 12:00
        > midnight
        I'll remind you on Fri 2026-02-13 00:00: call (reminder 1).
        > 토요일 12시에 전화하라고 알려줘
        오전인가요, 오후인가요? 2026-02-14 (토) 00:00 또는 2026-02-14 (토) 12:00
        > 자정
        2026-02-14 (토) 00:00에 알려드릴게요: 전화하기 (알림 2번).
        > remind me on Sunday to call Ann
        At what time on Sun 2026-02-15?
        > midnight
        That can mean several times: Sun 2026-02-15 00:00 or Mon 2026-02-16 00:00. Which one?
        > the second
        I'll remind you on Mon 2026-02-16 00:00: call Ann
        > remind me to call Ann tomorrow before noon
        I'm not sure which words are the time.
        > midnight
        That can mean several times: Tue 2026-02-10 00:00 or Wed 2026-02-11 00:00. Which one?
        > never mind
        > remind me every day to sleep
        At what time?
        > at midnight
        I'll remind you every day at 00:00: sleep.
        > remind me today to lock up
        At what time on Mon 2026-02-09?
        > midnight
        I'll remind you on Tue 2026-02-10 00:00: lock up
    """,
    "midnight is the start of each day of a repeating reminder": """
        > remind me on weekdays to jog
        At what time?
        > midnight
        at 00:00: jog.
        > remind me on mondays to swim
        At what time?
        > midnight
        at 00:00: swim.
        > remind me every day to rest
        At what time?
        > half past midnight
        I'll remind you every day at 00:30: rest.
        > remind me on weekdays at midnight to sleep
        I'll remind you every weekday at 00:00: sleep.
        > 매일 밤 12시에 자라고 알려줘
        매일 00:00에 알려드릴게요: 자기.
        > remind me on Friday to lock up
        At what time on Fri 2026-02-13?
        > half past midnight
        That can mean several times: Fri 2026-02-13 00:30 or Sat 2026-02-14 00:30. Which one?
    """,
    "midnight of a day is asked about": """
        > remind me on friday at midnight to call
        That can mean several times: Fri 2026-02-13 00:00 or Sat 2026-02-14 00:00. Which one?
        > the second
        I'll remind you on Sat 2026-02-14 00:00: call (reminder 1).
        > remind me tonight at midnight to sleep
        I'll remind you on Tue 2026-02-10 00:00: sleep (reminder 2).
        > remind me on friday at 2 at night to rest
        That can mean several times: Fri 2026-02-13 02:00 or Sat 2026-02-14 02:00. Which one?
        > the first
        I'll remind you on Fri 2026-02-13 02:00: rest (reminder 3).
        > 밤 12시 반에 자라고 알려줘
        2026-02-10 (화) 00:30에 알려드릴게요: 자기 (알림 4번).
        > 매일 밤 2시에 자라고 알려줘
        매일 02:00에 알려드릴게요: 자기.
        > 내일 자정에 전화하라고 알려줘
        여러 가지로 읽을 수 있어요: 2026-02-10 (화) 00:00 또는 2026-02-11 (수) 00:00. 어느 쪽인가요?
        > 그만
        > remind me on friday at 9 to write
        > move it to half past midnight
        That can mean several times: Fri 2026-02-13 00:30 or Sat 2026-02-14 00:30. Which one?
    """,
    "a quarter to twelve may be before noon or before midnight": """
        > remind me on Friday at 12 to feed the cat
        > quarter to
        Morning or evening? Fri 2026-02-13 11:45 or Fri 2026-02-13 23:45
        > evening
        I'll remind you on Fri 2026-02-13 23:45: feed the cat (reminder 1).
        > remind me tonight at quarter to twelve to feed the dog
        I'll remind you on Mon 2026-02-09 23:45: feed the dog (reminder 2).
    """,
    "any span before an event counts whole": """
        > remind me half an hour before the meeting at 3pm
        I'll remind you on Mon 2026-02-09 14:30: the meeting (reminder 1).
        > remind me 1 hour 30 minutes before the exam at 3pm
        I'll remind you on Mon 2026-02-09 13:30: the exam (reminder 2).
        > remind me to bring slides an hour and a half before the talk tomorrow at 3pm
        I'll remind you on Tue 2026-02-10 13:30: bring slides (reminder 3).
        > remind me tomorrow a quarter of an hour before the call at 3pm
        I'll remind you on Tue 2026-02-10 14:45: the call (reminder 4).
        > remind me to call mum before the party at 3pm
        I'll remind you on Mon 2026-02-09 15:00: call mum before the party (reminder 5).
        > remind me at 9am an hour before the show at 3pm
        not: 14:00
        > remind me a half hour before the film at 3pm
        I'll remind you on Mon 2026-02-09 14:30: the film
        > remind me ten to fifteen minutes before the train at 3pm
        I'm not sure which words are the time.
        > 일요일 오후 3시 회의 1시간 30분 전에 알려줘
        2026-02-15 (일) 13:30에 알려드릴게요: 회의
        > 일요일 오후 3시 산책 반 시간 전에 알려줘
        2026-02-15 (일) 14:30에 알려드릴게요: 산책
    """,
    "a deadline is moved of a task whose title has the word for it": """
        > add a task plan to move house
        > move the plan to move house deadline to monday
        Moved: plan to move house is due Mon 2026-02-09.
        > add a task plan to move the desk
        > set the plan to move the desk deadline to tuesday
        Moved: plan to move the desk is due Tue 2026-02-10.
        > add a task alarm system
        > move alarm system deadline to friday
        Moved: alarm system is due Fri 2026-02-13.
        > set a reminder to move the plan to move house deadline to friday
        not: Moved
        > the boss wants me to move the plan to move house deadline to friday
        not: Moved
    """,
    "a weekday with a time of day, or the one that was named, is a day of its own": """
        > remind me on monday feb 10 to call
        The day and the date don't fit
        > monday
        At what time on Mon 2026-02-09?
        > 9am
        I'll remind you on Mon 2026-02-09 09:00: call
        > remind me on monday feb 10 to write
        The day and the date don't fit
        > this monday
        At what time on Mon 2026-02-09?
        > 9am
        I'll remind you on Mon 2026-02-09 09:00: write
        > remind me on monday feb 10 to read
        The day and the date don't fit
        > monday at 3pm
        I'll remind you on Mon 2026-02-09 15:00: read
        > remind me on monday feb 10 at 9am to rest
        The day and the date don't fit
        > wednesday at 4pm
        I'll remind you on Wed 2026-02-11 16:00: rest
        > remind me on monday feb 10 at 9am to swim
        The day and the date don't fit
        > wednesday
        The day and the date don't fit
        > tuesday
        I'll remind you on Tue 2026-02-10 09:00: swim
    """,
    "undo takes back the rest of a message that cancelled a repetition": """
        > remind me every day at 9 to jog
        > add eggs to the shopping list
        > add milk to the shopping list and cancel the jog reminder
        Cancelled: jog.
        > undo
        I can't set a repeating reminder again: 'jog' stays cancelled.
        Off the shopping list again: milk.
        > show the shopping list
        1. eggs
        not: milk
        > remind me every day at 9 to jog
        > remind me tomorrow at 9am to call
        > cancel all reminders
        > yes
        > undo
        09:00
        > list reminders
        call
        not: jog
    """,
    "no older change is undone in place of a cancelled repetition": """
        > remind me every day at 9 to rest
        > add milk to the shopping list
        Added to the shopping list: milk.
        > cancel reminder R1
        Cancelled: rest.
        > undo
        I can't set a repeating reminder again: 'rest' stays cancelled.
        > undo
        There is nothing that I could take back.
        > show the shopping list
        1. milk
    """,
    "undo gives a task the deadline that it had": """
        > add a task write the essay
        On the dashboard: write the essay (no deadline).
        > move the deadline of essay to friday
        Moved: write the essay is due Fri 2026-02-13.
        > undo
        write the essay has no deadline.
        > when is the essay due
        write the essay has no deadline.
        > undo
        Moved: write the essay is due Fri 2026-02-13.
        > move the deadline of essay to 18:00
        Moved: write the essay is due Fri 2026-02-13 18:00.
        > undo
        Moved: write the essay is due Fri 2026-02-13.
        > when is the essay due
        not: 18:00
    """,
    "undo of the first assignment names nobody": """
        > add a task write the essay
        > assign the essay to Mia
        Noted: write the essay, Mia does it.
        > undo
        Noted: write the essay, nobody does it yet.
        > undo
        Noted: write the essay, Mia does it.
        > 작업 추가 블로그 쓰기
        > 블로그 쓰기 담당은 민수로 바꿔줘
        적어 두었어요: 블로그 쓰기, 민수님 담당.
        > 되돌려 줘
        적어 두었어요: 블로그 쓰기, 담당은 아직 없어요.
    """,
}


@pytest.fixture
async def chat(store_harness: StoreHarness, tmp_path: Path) -> AsyncIterator[Chat]:
    async with talking(store_harness, Workspace(tmp_path)) as one:
        yield one


@pytest.mark.parametrize("name", TALKS)
async def test_a_talk_goes_as_written(chat: Chat, name: str) -> None:
    """The lines that follow one of a person stand in the answer to it, in this order.

    `Tom>` is another person than Jane, `Owner>` the owner; `not:` stands nowhere in the rest of the answer.
    """
    said = ""
    for line in TALKS[name].strip().splitlines():
        line = line.strip()
        if spoken := re.fullmatch(r"(?P<who>\w*)>(?P<text>.*)", line):
            sender = spoken["who"] or "Jane"
            said = await chat.say(spoken["text"].strip().replace("\\n", "\n"), sender=sender)
            continue
        if line.startswith("not: "):
            assert line.removeprefix("not: ") not in said
            continue
        _, found, said = said.partition(line)
        assert found, f"{line!r} is not in: {said or _!r}"


async def test_yes_completes_the_task_that_was_asked_about(chat: Chat) -> None:
    asked = {"asked_count": 1, "last_asked_ms": FEB_9_0830 - HOUR_MS, "type": QuestionType.COMPLETION_CHECK}
    text = "“Write blog post” is at 90%. Is it done?"
    await chat.home.put(blog(pct=90), a_question(question=text, **asked))
    assert await chat.say("yes") == "Done: Write blog post."
    assert (await chat.home.task("task_001")).status.value == "completed"
    assert not (await chat.home.question("q_001")).is_open


async def test_no_leaves_it_open_and_notes_the_answer(chat: Chat) -> None:
    asked = {"asked_count": 1, "last_asked_ms": FEB_9_0830 - HOUR_MS, "type": QuestionType.COMPLETION_CHECK}
    await chat.home.put(
        blog(), a_question(question="“Write blog post” 진행률이 90%입니다. 다 됐나요?", **asked)
    )
    assert await chat.say("아직요") == "알겠어요. Write blog post은(는) 남겨 둘게요."
    assert (await chat.home.task("task_001")).status.value == "active"
    assert (await chat.home.question("q_001")).answer == "no"


async def test_a_yes_to_two_questions_asked_at_once_is_asked_back(chat: Chat) -> None:
    asked = {"asked_count": 1, "last_asked_ms": FEB_9_0830 - HOUR_MS}
    await chat.home.put(
        blog(),
        blog(id="task_002", title="Pay rent"),
        a_question(question="“Write blog post” Is it done?", **asked),
        a_question(id="q_002", question="“Pay rent” Is it done?", task_id="task_002", **asked),
    )
    both = await chat.say("yes")
    assert both.startswith("Which one do you mean?\n1. ")
    assert await chat.say("rent") == "Done: Pay rent."
    assert (await chat.home.task("task_001")).status.value == "active"


@pytest.mark.parametrize(
    ("lines", "ask", "head", "take_back", "sure", "yes", "nothing"),
    [
        (
            "- Jane likes jazz\n- The dog is Bello\n",
            "what do you know about us?",
            "This is what I know",
            "forget that I like jazz",
            "Forget this for good?",
            "yes",
            "Nothing that I know has these words.",
        ),
        (
            "- 제인은 재즈를 좋아함\n- 개 이름은 벨로\n",
            "우리에 대해 뭘 알아?",
            "이 대화방과 여러분에 대해",
            "내가 재즈를 좋아한다는 것 잊어 줘",
            "완전히 잊을까요?",
            "네",
            "그런 말이 들어 있는 것은 없어요.",
        ),
    ],
)
async def test_what_is_known_is_told_and_taken_back(
    chat: Chat, lines: str, ask: str, head: str, take_back: str, sure: str, yes: str, nothing: str
) -> None:
    notes = chat.workspace.root / "groups" / "family" / "CLAUDE.md"
    notes.parent.mkdir(parents=True)
    notes.write_text(lines)
    kept, other = lines.splitlines()
    told = await chat.say(ask)
    assert head in told
    assert all(line in told for line in (kept, other))
    asked = await chat.say(take_back)
    assert sure in asked
    assert (kept in asked, other in asked, notes.read_text()) == (True, False, lines)
    await chat.say(yes)
    assert notes.read_text() == f"{other}\n"
    assert kept not in await chat.say(ask)
    assert await chat.say(take_back) == nothing


async def test_what_was_asked_is_known_in_the_next_container(
    store_harness: StoreHarness, tmp_path: Path
) -> None:
    async with talking(store_harness, Workspace(tmp_path)) as chat:
        await chat.say("remind me at 9 to call mum")
        again = chat.anew()
        assert await again.say("evening") == "I'll remind you on Mon 2026-02-09 21:00: call mum (reminder 1)."
        assert "Morning" not in await again.say("hello"), "answered once, it is asked no more"


async def test_the_file_of_a_conversation_keeps_its_names(chat: Chat) -> None:
    """A container of the version before or after this one goes on with it."""
    await chat.say("remind me at 9 to call mum")
    kept = json.loads((chat.workspace.group / ".andy-talk.json").read_text())
    assert set(kept) == {"turn", "before", "after"}
    assert set(kept["after"]) == {"questions", "shown", "list", "task", "told_day", "last", "undo", "repeats"}
    assert set(kept["after"]["questions"][0]) == {"wish", "slot", "text", "sender", "person", "at", "options"}


async def test_an_answer_in_a_turn_that_is_tried_again_counts_once(chat: Chat) -> None:
    await chat.say("remind me at 9 to call mum")
    async with chat.turn() as turn:
        first, again = await chat.take(turn, "evening"), await chat.anew().take(turn, "evening")
    assert first == again == "I'll remind you on Mon 2026-02-09 21:00: call mum (reminder 1)."
    assert len(await chat.home.harness.rows("SELECT id FROM notifications")) == 1


async def test_a_question_of_yesterday_is_forgotten(chat: Chat) -> None:
    await chat.say("remind me at 9 to call mum")
    chat.home.clock.wall_ms += DAY_MS + 1
    assert await chat.say("evening") == (
        "I can't do that: I only understand simple requests. Say 'help' to see which."
    )


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"turn": 1, "before": 7}', b"\xff", b"x" * 2_000_000])
async def test_a_damaged_memory_is_none(chat: Chat, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "group" / ".andy-talk.json").write_bytes(content)
    assert await chat.say("echo here") == "here"


async def test_main_is_told_once_a_day_how_more_would_be_understood(chat: Chat) -> None:
    await chat.home.harness.add_group("boss", is_main=True)
    for text in ("write me a poem", "시 써줘"):
        assert "KEY" not in await chat.say(text)
    assert "KEY" not in await chat.anew(Path("elsewhere")).say("sing")
    rows = "SELECT chat_jid, text FROM outbox WHERE dedupe_key LIKE 'owner:%'"
    (told,) = await chat.home.harness.rows(rows)
    assert told["chat_jid"] == "local:boss"
    assert "ANTHROPIC_API_KEY" in told["text"]
    chat.home.clock.wall_ms += DAY_MS
    await chat.say("write me a poem")
    assert len(await chat.home.harness.rows(rows)) == 2


async def test_a_repeating_reminder_that_is_paused_is_not_said_to_come(chat: Chat) -> None:
    await chat.say("remind me every day at 7am to run")
    async with chat.turn():
        (task,) = await chat.home.harness.rows("SELECT id FROM scheduled_tasks")
        await chat.home.ask_raw({"type": "pause_task", "taskId": task["id"]})
    assert "R1. every day at 07:00, paused · run" in await chat.say("list reminders")
    assert "run" not in await chat.say("what's on tomorrow?")


async def test_a_reply_to_a_reminder_that_came_sets_it_again(chat: Chat) -> None:
    said = await chat.say("snooze 20 minutes", quoted="⏰ Reminder for Jane: cook")
    assert said == "I'll remind you on Mon 2026-02-09 08:50: cook (reminder 1)."
    assert "\n1. Mon 2026-02-09 08:50 · cook" in await chat.say("list reminders")
    await chat.say("snooze 5 minutes", quoted="⏰ Reminder for Bob: hoe")
    listed = await chat.say("list reminders")
    assert "Reminder for Bob: hoe" in listed, "it stays Bob's"
    await chat.say("cancel reminder 2")
    said = await chat.say("한 시간 뒤에 다시 알려줘", quoted="⏰ Jane님 알림: 약 먹기")
    assert said.startswith("2026-02-09 (월) 09:30에 알려드릴게요: 약 먹기 (알림 3번).")


async def test_a_reply_to_a_reminder_that_is_set_moves_that_one(chat: Chat) -> None:
    first = await chat.say("remind me tomorrow at 10am to cook")
    await chat.say("remind me tomorrow at 11am to eat")
    said = await chat.say("make it 9am", quoted=first)
    assert said == "Moved: cook. It comes on Tue 2026-02-10 09:00."


async def test_a_reminder_of_a_deadline_is_the_one_message_of_that_day(chat: Chat) -> None:
    """It is about the task: the rules send no other for the day before, and it is gone with the task."""
    await chat.say("작업 추가 블로그 쓰기 2월 11일까지")
    assert "알림 1번" in await chat.say("마감 전날 알려줘")
    (row,) = await chat.home.harness.rows("SELECT type, task_id, due_ms FROM notifications")
    assert row["type"] == "reminder"
    assert row["task_id"]
    await chat.say("블로그 완료")
    assert await chat.say("알림 목록") == "알림이 없어요."
