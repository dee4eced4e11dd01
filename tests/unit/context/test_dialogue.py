"""Messages entering a context: each counts once, in order, without secrets; what leaves is folded once."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.context.dialogue import NewMessage, RegisteredMessages, closed, registered, without
from orchestrator.context.models import (
    MAX_FOLDED,
    MAX_REGISTERED,
    Context,
    ContextMessage,
    SeenMessages,
    bootstrap,
    ms_of,
)
from orchestrator.context.tokens import EncodingCounter
from tests.support.dialogues import NOW, answers, asks, context, question

COUNTER = EncodingCounter()
EMPTY = bootstrap(NOW)


class Remembering:
    """A summariser that notes what it was given."""

    def __init__(self) -> None:
        self.folded: list[str] = []

    def fold(self, old: str, evicted: Sequence[ContextMessage]) -> str:
        self.folded += [message.id for message in evicted]
        return f"{old}+{len(evicted)}"


def register(
    context: Context, *spoken: NewMessage, summariser: Remembering | None = None
) -> RegisteredMessages:
    return registered(context, spoken, counter=COUNTER, summariser=summariser or Remembering())


def ids(context: Context) -> list[str]:
    return [message.id for message in context.conversation.recent_window]


def test_c_12_what_is_said_is_appended_counted_and_stamped():
    done = register(EMPTY, asks(1, "hello world"), answers(1, "hello world"))

    assert ids(done.context) == ["t1.u", "t1.a"]
    assert done.new_ids == ("t1.u", "t1.a")
    assert done.context.stats.dialog_turns == 1
    assert done.context.stats.total_tokens == 4
    assert done.context.conversation.recent_window[0].ts == "2026-11-22T09:31:00.000Z"


def test_a_question_is_pending_until_its_answer():
    asked = register(EMPTY, asks(1, "?")).context
    assert asked.pending_user == "t1.u"
    assert register(asked, answers(1, "!")).context.pending_user is None


def test_a_late_answer_to_an_earlier_question_leaves_the_newer_one_pending():
    asked = register(EMPTY, asks(1, "?"), asks(2, "??")).context

    assert register(asked, answers(1, "!")).context.pending_user == "t2.u"


def test_what_was_registered_before_changes_nothing():
    once = register(EMPTY, asks(1, "?"), answers(1, "!")).context

    again = register(once, asks(1, "?"), answers(1, "!"))

    assert again.context is once
    assert again.new_ids == ()


def test_what_left_the_window_does_not_come_back():
    summariser = Remembering()
    context = EMPTY
    for turn in range(1, 31):
        context = register(context, asks(turn, "word " * 100), summariser=summariser).context

    again = register(context, asks(1, "word " * 100), summariser=summariser)

    assert again.context is context
    assert len(summariser.folded) == len(set(summariser.folded)) == 30 - len(ids(context))


def test_each_message_is_folded_once_and_none_is_lost():
    summariser = Remembering()
    context = EMPTY
    for turn in range(1, 200):
        context = register(
            context, asks(turn, "word " * (turn % 90)), answers(turn, "word " * 30), summariser=summariser
        ).context

    everything = [f"t{turn}.{who}" for turn in range(1, 200) for who in "ua"]
    assert summariser.folded + ids(context) == everything
    assert context.stats.dialog_turns == 199


def test_what_left_is_told_whole_with_the_summary_before_it():
    first = register(EMPTY, asks(1, "x " * 500), answers(1, "y")).context

    done = register(first, asks(2, "z " * 500))

    assert [message.id for message in done.evicted] == ["t1.u", "t1.a"]
    assert done.old_summary == ""
    assert done.context.conversation.running_summary == "+2"


def test_a_turn_that_is_tried_again_may_ask_more():
    asked = register(EMPTY, asks(1, "one"), answers(1, "!"), asks(2, "two")).context

    done = register(asked, NewMessage(id="t2.u", role="user", content="two and three", at_ms=NOW + 10**7))

    assert [message.content for message in done.context.conversation.recent_window] == [
        "one",
        "!",
        "two and three",
    ]
    assert done.context.stats.dialog_turns == 2
    assert done.new_ids == ()


def test_a_clock_that_was_put_back_orders_nothing():
    context = register(EMPTY, asks(1, "first"), answers(1, "second")).context

    done = register(context, NewMessage(id="t2.u", role="user", content="third", at_ms=NOW - 10**9))

    assert ids(done.context) == ["t1.u", "t1.a", "t2.u"]
    stamps = [ms_of(message.ts) for message in done.context.conversation.recent_window]
    assert stamps == sorted(stamps)


def test_what_is_caught_up_on_takes_its_place_in_time():
    context = register(EMPTY, asks(1, "?"), asks(3, "???")).context

    assert ids(register(context, asks(2, "??")).context) == ["t1.u", "t2.u", "t3.u"]


def test_c_21_a_secret_is_gone_before_anything_is_cut():
    secret = "sk-ant-api03-" + "Q7xK2mVt9LpR4sWd" * 400

    done = register(
        EMPTY, asks(1, f"{'word ' * 700} {secret} {'word ' * 700}"), answers(1, f"password={secret}")
    )

    assert "Q7xK2mVt9" not in done.context.model_dump_json()
    assert "Q7xK2mVt9" not in "".join(message.content for message in done.evicted)


def test_halves_of_characters_and_nulls_do_not_stop_a_message():
    done = register(EMPTY, asks(1, "a\ud800b\0c"))

    assert done.context.conversation.recent_window[0].content == "a?bc"
    done.context.model_dump_json().encode()


def test_a_long_history_is_remembered_by_its_newest_ids_and_a_floor():
    seen = SeenMessages().with_ids(f"t{turn}.u" for turn in range(1, 1_000))

    assert len(seen.ids) == MAX_REGISTERED
    assert all(f"t{turn}.u" in seen for turn in range(1, 1_000))
    assert "t1000.u" not in seen
    assert "t3.a" in seen
    assert "foreign" not in seen
    assert 3 not in seen


def test_a_message_from_before_the_recorded_ones_of_a_long_summary_is_taken_for_one_in_it():
    recorded = tuple(f"t{turn}.{who}" for turn in range(50, 150) for who in "ua")
    seen = SeenMessages(floor=149)
    long = context(question(150, "new"), summary="the old secret; other")
    conversation = long.conversation.model_copy(update={"folded": recorded, "seen": seen})
    long = long.model_copy(update={"conversation": conversation})
    messages = {message_id: question(60, "other") for message_id in recorded[:1]}

    def summary_without(message_id: str) -> str:
        done = without(long, message_ids=[message_id], messages=messages, summariser=Remembering())
        return done.conversation.running_summary

    assert len(recorded) == MAX_FOLDED
    assert summary_without("t3.u") == "+1", "made anew of what is left"
    assert summary_without("t150.u") == "the old secret; other"


def test_a_closed_conversation_is_forgotten_and_does_not_come_back():
    context = register(EMPTY, asks(4, "?"), answers(4, "!"), asks(5, "?")).context

    empty = closed(context, through_turn=7)

    assert empty.is_empty
    assert empty.pending_user is None
    assert register(empty, asks(4, "?"), asks(7, "?")).context is empty
    assert ids(register(empty, asks(8, "?")).context) == ["t8.u"]
