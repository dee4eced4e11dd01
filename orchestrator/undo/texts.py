"""Write the replies of an undo: what it did, what stays and what prevents it, in English and Korean. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.undo.plan import UndoItem, UndoPlan

MAX_ITEMS = 8
"""Most effects that an answer lists."""
_KINDS = {
    "notifications": ("the reminder", "리마인더"),
    "dashboard_tasks": ("the task", "할 일"),
    "questions": ("the question", "질문"),
    "polls": ("the question", "질문"),
    "insights": ("the note", "메모"),
    "people": ("the person", "사람"),
    "projects": ("the project", "프로젝트"),
    "scheduled_tasks": ("the scheduled task", "예약 작업"),
    "cross_session_notifications": ("the note to myself", "나에게 남긴 메모"),
    "registered_groups": ("the group", "그룹"),
    "group_chats": ("the chat", "채팅"),
    "model_choices": ("the model", "모델"),
    "loop_state": ("the loop of", "루프"),
    "file": ("the file", "파일"),
    "folder": ("the folder", "폴더"),
    "outbox": ("the message", "메시지"),
}
_CHANGES = {
    "removed": ("is gone", "삭제"),
    "brought_back": ("is back", "다시 살림"),
    "changed_back": ("is as it was", "원래대로"),
}


SAY_AGAIN = "Say “undo” again to have it as it was."


def done(plan: UndoPlan, *, is_korean: bool) -> str:
    """Return the reply to an undo that was carried out: what it did, what stays, and how to redo it."""
    listed = items(plan, is_korean=is_korean)
    if is_korean:
        text = f"{'다시 했어요' if plan.is_redo else '되돌렸어요'}: {', '.join(listed)}."
        hint = "원래대로 하려면 “되돌려 줘”라고 한 번 더 말해 주세요."
    else:
        text = f"{'Done again' if plan.is_redo else 'Undone'}: {'; '.join(listed)}."
        hint = SAY_AGAIN
    return " ".join(filter(None, (text, left(plan, is_korean=is_korean), hint)))


def items(plan: UndoPlan, *, is_korean: bool) -> list[str]:
    """Return short texts about what an undo restores, deletes or stops.

    Restored things beyond `MAX_ITEMS`, messages, and waiting turns of scheduled tasks are only counted. Of
    the removed reactions, the first `MAX_ITEMS` emoji are shown.
    """
    listed = [_item(item, is_korean=is_korean) for item in plan.items[:MAX_ITEMS]]
    if len(plan.items) > MAX_ITEMS:
        more = len(plan.items) - MAX_ITEMS
        listed.append(f"그 밖에 {more}개" if is_korean else f"{more} more")
    if count := len(plan.unsent):
        word = "message is" if count == 1 else "messages are"
        listed.append(f"메시지 {count}개 보내지 않음" if is_korean else f"{count} {word} not sent")
    if reactions := [message.text for message in plan.sent if message.reacts_to is not None]:
        shown = " ".join(reactions[:MAX_ITEMS])
        listed.append(f"이모지 {shown} 지움" if is_korean else f"the emoji {shown} taken away")
    if count := len(plan.sent) - len(reactions):
        word = "message is" if count == 1 else "messages are"
        listed.append(f"보낸 메시지 {count}개 삭제" if is_korean else f"{count} sent {word} deleted")
    if count := len(plan.waiting_runs):
        word = "run" if count == 1 else "runs"
        listed.append(
            f"예약 작업 {count}번 실행하지 않음" if is_korean else f"{count} {word} of a task will not begin"
        )
    return listed


def later(plan: UndoPlan, *, is_korean: bool) -> list[str]:
    """Return texts about what was changed since the turn, each with the request that changed it.

    At most `MAX_ITEMS` are returned. Changes without a title say little, and are left out; if none has one,
    the first is returned.
    """
    shown = [change for change in plan.later if change.item.title][:MAX_ITEMS] or list(plan.later[:1])
    by = "" if is_korean else "by "
    return [
        _name(change.item, is_korean=is_korean) + (f" ({by}“{change.by}”)" if change.by else "")
        for change in shown
    ]


def built_on(plan: UndoPlan, *, is_korean: bool) -> str:
    """Return the reply that nothing was undone because of later changes, and how to undo in spite of them."""
    listed = (", " if is_korean else "; ").join(later(plan, is_korean=is_korean))
    if is_korean:
        return (
            f"그 뒤에 바뀐 것이 있어요: {listed}. 아무것도 되돌리지 않았어요. "
            "그래도 되돌리려면 “그래도 되돌려 줘”라고 말해 주세요. 나중에 바뀐 내용은 사라져요."
        )
    return (
        f"Changed again since: {listed}. I have undone nothing. "
        "Say “undo anyway” to put it back all the same; the later change is then lost."
    )


def nothing(plan: UndoPlan, *, is_korean: bool) -> str:
    """Return the reply that nothing of a turn can be restored, with the effects that stay."""
    start = "되돌릴 수 있는 것이 없어요." if is_korean else "There is nothing that I can put back."
    return f"{start} {left(plan, is_korean=is_korean)}".rstrip()


def something_in_place(*, is_korean: bool) -> str:
    """Return the reply that nothing was undone, because something else is in the place of a removed item."""
    if is_korean:
        return "없어진 것의 자리에 다른 것이 있어서 아무것도 되돌리지 않았어요. 먼저 그것을 없애 주세요."
    return "Something else is in the place of what was removed, so I have undone nothing: remove that first."


def busy(*, is_korean: bool) -> str:
    """Return the reply that nothing is undone while a turn of the group runs."""
    if is_korean:
        return "지금 하는 일이 있어요. 끝난 뒤에 다시 말하거나, 먼저 “그만”이라고 말해 주세요."
    return "I am still working on something here: say it again once that is done, or “stop” first."


def only(names: str, *, is_korean: bool) -> str:
    """Return the reply that the sender may not undo a turn, and who may: the people in `names`, or the owner.

    `names` is empty if nobody asked in the turn.
    """
    if is_korean:
        return f"이것은 {f'부탁한 사람({names})이나 ' if names else ''}주인만 되돌릴 수 있어요."
    return f"Only {f'the one who asked ({names}) or ' if names else ''}the owner can undo this."


def left(plan: UndoPlan, *, is_korean: bool) -> str:
    """Return a sentence about the effects of a turn that cannot be undone; empty if there are none."""
    listed = ", ".join(effect.text(is_korean=is_korean) for effect in plan.outside)
    if not listed:
        return ""
    return f"되돌릴 수 없는 것: {listed}." if is_korean else f"What I cannot take back: {listed}."


def files_left(items_left: Sequence[UndoItem]) -> str:
    """Return the text that files and folders could not be put back after an undo, in both languages.

    It comes later than the reply, when no message shows the language.
    """
    english = [_name(item, is_korean=False) for item in items_left[:MAX_ITEMS]]
    korean = [_name(item, is_korean=True) for item in items_left[:MAX_ITEMS]]
    if (more := len(items_left) - MAX_ITEMS) > 0:
        english.append(f"{more} more")
        korean.append(f"그 밖에 {more}개")
    return (
        f"⚠️ I could not put back: {'; '.join(english)}. What is there now stays: something"
        " else changed it meanwhile, or the folder cannot be written.\n"
        f"되돌리지 못해 그대로 둔 것: {', '.join(korean)}. 그사이에 바뀌었거나 폴더에 쓸 수 없었어요."
    )


def _item(item: UndoItem, *, is_korean: bool) -> str:
    """Return the name of an item and what happened to it, such as `the reminder “Milk” is back`."""
    english, korean = _CHANGES[item.change]
    return f"{_name(item, is_korean=is_korean)} {korean if is_korean else english}"


def _name(item: UndoItem, *, is_korean: bool) -> str:
    """Return the kind and the title of an item, such as `the reminder “Milk”`."""
    english, korean = _KINDS.get(item.kind, ("", ""))
    return f"{korean if is_korean else english} “{item.title}”".strip()
