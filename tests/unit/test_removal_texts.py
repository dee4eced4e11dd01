"""The texts about a person who is forgotten."""

from __future__ import annotations

from orchestrator.context import removal_texts


def test_what_was_removed_is_counted_in_the_singular_and_the_plural():
    counts = {"message": 1, "note": 2, "decision": 1, "insight": 1, "archive": 0}
    english, korean = removal_texts.done(counts, {}, [], named_in_context=0).splitlines()
    assert english == (
        "Forgotten: 1 message of yours, 2 notes, 1 decision or line of the summary, 1 thing learned."
    )
    assert korean.startswith("잊었어요: 보내신 메시지 1개, 메모 2개, ")
