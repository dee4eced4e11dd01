"""The texts that ask a person to confirm being forgotten, and that report what was removed. Pure.

The report is in both languages: a removal is carried out later, without a message that shows the language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.base.tables import counted

MAX_LISTED = 5
_KINDS = {
    "message": ("message of yours", "messages of yours", "보내신 메시지"),
    "answer": ("answer to you", "answers to you", "드린 답"),
    "note": ("note", "notes", "메모"),
    "decision": ("decision or line of the summary", "decisions and lines of the summary", "결정과 요약 줄"),
    "insight": ("thing learned", "things learned", "알게 된 것"),
    "archive": ("archived conversation", "archived conversations", "대화 보관본"),
    "file": ("file you sent", "files you sent", "보내신 파일"),
}
"""The names of what is removed, by its kind: in English for one and for several, and in Korean."""


def question(*, messages: int, notes: int, is_korean: bool) -> str:
    """Return the question whether a person really wants to be forgotten, with what is removed and what stays.

    `messages` and `notes` are the numbers of the person's messages and of the notes about them.
    """
    if is_korean:
        return (
            "이 그룹에서 당신을 잊을까요?\n"
            f"없어지는 것: 보내신 메시지 {messages}개의 내용과 파일, 당신에게만 드린 답,"
            f" 당신에 대한 메모 {notes}개, 이름, 요약·스냅샷·검색에 있는 당신의 말,"
            " 지금까지의 세션, 되돌리기 기록.\n"
            "남는 것: 역할과 주소, 정하신 알림과 할 일, 다른 사람이 한 말, 메신저의 기록, 기한까지의 백업.\n"
            "되돌릴 수 없어요. 정말이면 이렇게 답해 주세요: 네, 나를 잊어 줘"
        )
    return (
        "Forget you in this group?\n"
        f"These go: the words and files of {counted(messages, 'message')} of yours,"
        f" answers to you alone, {counted(notes, 'note')}"
        " of you, your name, your words in summary, snapshots and search, the session so far, and what could"
        " be undone.\n"
        "These stay: your role and address, reminders and tasks that you set, what others said, the"
        " messenger's own history, and backups until they expire.\n"
        "It cannot be taken back. If you mean it, answer: yes, forget me"
    )


def accepted(*, is_busy: bool, is_korean: bool) -> str:
    """Return the reply to a person who confirmed that they want to be forgotten.

    `is_busy` says whether the removal has to wait for the end of a running turn.
    """
    if is_korean:
        return "알겠어요. 지금 하는 일이 끝나는 대로 잊을게요." if is_busy else "알겠어요. 지금 잊을게요."
    later = "as soon as what I am working on is over" if is_busy else "now"
    return f"All right, I forget you {later}. I will say so when it is done."


def delayed() -> str:
    """Return the message to the chat when removing a person's data failed for now, in English and Korean."""
    return (
        "I could not forget you yet, because something of this group could not be changed. The owner knows."
        " I try again by myself, and will say so when it is done.\n"
        "아직 잊지 못했어요. 이 그룹에서 바꾸지 못한 것이 있어요. 주인에게 알렸어요."
        " 제가 다시 해 보고, 끝나면 말씀드릴게요."
    )


def delayed_for_owner(folder: str, reason: str) -> str:
    """Return the message to the owner that a person of the group `folder` could not be forgotten yet."""
    return (
        f"⚠️ A person in '{folder}' could not be forgotten yet: {reason.rstrip('.')}. Andy tries again each"
        f" minute. Please check that Andy can write to groups/{folder} and data/, and that the disk has room."
    )


def only_oneself(*, is_korean: bool) -> str:
    """Return the refusal to a person who wants somebody else to be forgotten."""
    if is_korean:
        return (
            "본인만 그렇게 말할 수 있어요. 주인은 콘솔이나 'andy context forget GROUP WHO'으로 할 수 있어요."
        )
    return (
        "Only they themselves can have me forget them, by writing: forget me."
        " The owner can on the console or with 'andy context forget GROUP WHO'."
    )


def done(
    counts: Mapping[str, int],
    lines_by_file: Mapping[str, int],
    unsearched: Sequence[str],
    *,
    named_in_context: int,
) -> str:
    """Return the report on a person who was forgotten, in English and Korean.

    `counts` has the number of removed items by kind. `lines_by_file` has the paths of files that still have
    the person's name, each with the number of such lines. `unsearched` has the paths of notes and archives
    that were not searched. `named_in_context` is the number of decisions and lines of the summary that
    have the name, if these are too many to delete by it; otherwise 0.
    """
    # The counts with the names of their kinds, see `_KINDS`.
    removed = [(count, *_KINDS[kind]) for kind, count in counts.items() if count and kind in _KINDS]
    english = ", ".join(f"{count} {one if count == 1 else several}" for count, one, several, _ in removed)
    korean = ", ".join(f"{kind_text} {count}개" for count, _, _, kind_text in removed)
    english, korean = english or "nothing was there", korean or "있던 것이 없어요"
    lines = [f"Forgotten: {english}.", f"잊었어요: {korean}."]
    if lines_by_file:
        files = ", ".join(f"{path} ({count})" for path, count in list(lines_by_file.items())[:MAX_LISTED])
        more = " …" if len(lines_by_file) > MAX_LISTED else ""
        lines.append(
            f"The name still stands in files of the group (lines): {files}{more}."
            " To take those lines out, say: forget about NAME."
        )
        lines.append(
            f"그룹의 파일에는 이름이 아직 있어요(줄 수): {files}{more}. 지우려면: NAME에 대해 잊어 줘"
        )
    if named_in_context:
        lines.append(
            f"The name is in {named_in_context} decisions and lines of the summary. In so many it may be an"
            " ordinary word, so nothing was deleted by it there, in plans and in snapshots."
        )
        lines.append(
            f"결정과 요약 줄 {named_in_context}개에 이름이 있어요. 그렇게 많으면 흔한 낱말일 수 있어서,"
            " 거기와 계획과 스냅샷에서는 이름으로 지우지 않았어요."
        )
    if unsearched:
        files = ", ".join(unsearched[:MAX_LISTED])
        more = f" (+{len(unsearched) - MAX_LISTED})" if len(unsearched) > MAX_LISTED else ""
        lines.append(f"Not searched: {files}{more}. They cannot be read, are links, too large or too many.")
        lines.append(
            f"찾아보지 못한 파일: {files}{more}. 읽을 수 없거나, 링크이거나, 너무 크거나, 너무 많아요."
        )
    return "\n".join(lines)
