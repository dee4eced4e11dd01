"""Two changes of one context at once: neither is lost, whatever the clocks say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.context import memory
from orchestrator.context.merging import merged
from orchestrator.context.models import Checkpoint, Context, Dialogue, Memory, Sdk, SeenMessages, Stats
from tests.support.dialogues import answer, context, question


def saying(*turns: int, seen: tuple[str, ...] = (), summary: str = "") -> Context:
    window = tuple(question(turn, f"Q{turn}") for turn in turns)
    ids = SeenMessages().with_ids((*seen, *(message.id for message in window)))
    return context().model_copy(
        update={"conversation": Dialogue(recent_window=window, seen=ids, running_summary=summary)}
    )


def window_of(found: Context) -> list[str]:
    return [message.id for message in found.conversation.recent_window]


def test_c_20_messages_are_joined_by_id_and_sorted_by_time():
    joined = merged(saying(1), saying(1, 3), saying(1, 2, 4))

    assert window_of(joined) == ["t1.u", "t2.u", "t3.u", "t4.u"]
    assert all(f"t{turn}.u" in joined.conversation.seen for turn in range(1, 5))


def test_c_20_what_one_side_folded_does_not_come_back():
    disk = saying(2, 3, seen=("t1.u",), summary="one")

    joined = merged(saying(1, 2), disk, saying(1, 2, 4))

    assert window_of(joined) == ["t2.u", "t3.u", "t4.u"]
    assert joined.conversation.running_summary == "one"


def test_c_20_decisions_and_files_are_unions_in_their_order_and_what_was_taken_away_is_gone():
    base = context(memory=Memory(last_decisions=("a", "b"), open_files=("f", "g")))
    disk = context(memory=Memory(last_decisions=("a", "b", "theirs"), open_files=("f", "g", "h")))
    mine = context(memory=Memory(last_decisions=("a", "b", "mine"), open_files=("g",)))

    joined = merged(base, disk, mine).memory

    assert joined.last_decisions == ("a", "b", "theirs", "mine")
    assert joined.open_files == ("g", "h")


def test_c_20_of_one_value_the_later_writer_counts_only_where_it_changed_it():
    base = context(memory=Memory(active_plan_id="p1", working_directory="/a"))
    disk = context(memory=Memory(active_plan_id="p2", working_directory="/b"), pending="t9.u")
    mine = context(memory=Memory(active_plan_id="p1", working_directory="/c"))

    joined = merged(base, disk, mine)

    assert (joined.memory.active_plan_id, joined.memory.working_directory) == ("p2", "/c")
    assert joined.pending_user == "t9.u"


def test_c_20_a_writer_whose_clock_is_wrong_is_ordered_by_revision():
    base = context(memory=Memory(working_directory="/a"))
    disk = base.model_copy(
        update={
            "updated_at": "2099-01-01T00:00:00Z",
            "revision": 5,
            "memory": Memory(working_directory="/future"),
        }
    )
    mine = base.model_copy(update={"memory": Memory(working_directory="/mine")})

    assert merged(base, disk, mine).memory.working_directory == "/mine"


def test_what_was_counted_on_both_sides_adds_up():
    joined = merged(
        context().model_copy(update={"stats": Stats(dialog_turns=10, total_tokens=100)}),
        context().model_copy(update={"stats": Stats(dialog_turns=12, total_tokens=150)}),
        context().model_copy(update={"stats": Stats(dialog_turns=11, total_tokens=110)}),
    )

    assert joined.stats == Stats(dialog_turns=13, total_tokens=160)


def test_a_session_that_one_side_began_is_the_one():
    base = context().model_copy(update={"sdk": Sdk(session_id="one", last_active_ms=1)})
    two = base.model_copy(update={"sdk": memory.with_session(base.sdk, session_id="two", now_ms=9)})
    same = base.model_copy(update={"sdk": memory.with_checkpoint(base.sdk, 4, "uuid")})

    for disk, mine in ((two, same), (same, two)):
        joined = merged(base, disk, mine).sdk
        assert (joined.session_id, joined.history, joined.checkpoints) == ("two", ("one",), ())
    other = base.model_copy(update={"sdk": memory.with_checkpoint(base.sdk, 5, "uuid-5")})
    assert merged(base, same, other).sdk.checkpoints == (
        Checkpoint(turn=4, uuid="uuid"),
        Checkpoint(turn=5, uuid="uuid-5"),
    )


def test_a_session_that_came_and_went_meanwhile_stays_in_the_history():
    base = context().model_copy(update={"sdk": Sdk(session_id="one", last_active_ms=1)})
    left = memory.with_session(base.sdk, session_id="two", now_ms=2)
    disk = base.model_copy(update={"sdk": memory.with_session(left, session_id="one", now_ms=3)})
    mine = base.model_copy(update={"sdk": memory.with_checkpoint(base.sdk, 4, "uuid")})

    joined = merged(base, disk, mine).sdk

    assert joined.history == ("one", "two")
    assert joined.checkpoints == (Checkpoint(turn=4, uuid="uuid"),)


turns = st.sets(st.integers(1, 12))


@given(turns, turns, turns)
def test_no_message_of_either_side_is_lost(both: set[int], theirs: set[int], ours: set[int]):
    base = saying(*sorted(both))
    disk, mine = saying(*sorted(both | theirs)), saying(*sorted(both | ours))

    joined = merged(base, disk, mine)

    assert window_of(joined) == [f"t{turn}.u" for turn in sorted(both | theirs | ours)]
    assert merged(base, disk, base) == disk


def test_an_answer_on_one_side_joins_its_question_on_the_other():
    base = context(question(1, "?"))
    mine = context(question(1, "?"), answer(1, "!"))

    assert window_of(merged(base, base, mine)) == ["t1.u", "t1.a"]
