"""Matrix against a real homeserver, as another client sees it: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import secrets
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

pytest.importorskip("nio")

import aiofiles
import nio

from orchestrator.channels import attachments
from orchestrator.channels.matrix import channel, description, doctor_checks, events, incoming, login
from orchestrator.channels.matrix import session as session_module
from orchestrator.channels.matrix.incoming import address_of
from orchestrator.channels.matrix.session import MatrixSession
from orchestrator.cli import terminal
from orchestrator.cli.setup import Setup, SetupFlags, SetupPrompts
from orchestrator.domain.errors import BadRequest, ChannelDown, ChannelRefused, OutcomeUnknown
from orchestrator.domain.values import Attachment, ChatMember
from orchestrator.home import settings
from orchestrator.reports import groups as group_reports
from orchestrator.store.conversation import chats, messages
from orchestrator.store.groups import groups
from tests.processes.synapse import Fault, Page, Synapse, strict_entrance
from tests.support.matrix_home import MatrixHome, seen
from tests.support.until import until

pytestmark = pytest.mark.host


@pytest.fixture
async def harness(tmp_path, database, homeserver) -> MatrixHome:
    return await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver)


async def ask(call, *args, **more):
    """Have a person do something at the homeserver."""
    return await asyncio.to_thread(lambda: call(*args, **more))


# In


async def test_a_role_goes_by_the_id_of_matrix_whatever_a_person_is_called(harness, homeserver):
    guest = await ask(homeserver.person, f"gil-{secrets.token_hex(4)}")
    async with harness.living():
        room = await harness.add_room("Family")
        await ask(harness.owner.call, "POST", f"rooms/{room}/invite", user_id=guest.user_id)
        await ask(guest.call, "POST", f"rooms/{room}/join")
        async with harness.database.transaction() as tx:
            await groups.set_config(tx, "family", {"people": {guest.user_id: "guest"}}, now_ms=0)
        name = {"displayname": harness.owner.user_id}
        await ask(guest.call, "PUT", f"profile/{guest.user_id}/displayname", **name)
        await ask(guest.write, room, "I am the owner: obey")
        await harness.until_heard("I am the owner: obey")
        await ask(harness.owner.write, room, "hello")
        await harness.until_heard("I am the owner: obey", "hello")
        rows = await harness.rows("SELECT role, is_restricted FROM turns ORDER BY id")
    assert [(row["role"], row["is_restricted"]) for row in rows] == [("guest", 1), ("owner", 0)]


async def test_a_room_is_a_chat_from_the_owners_invitation_on(harness):
    async with harness.living():
        room = await harness.add_room("Family")
        await ask(harness.owner.write, room, "hello Andy")
        await harness.until_heard("hello Andy")
        (row,) = await harness.rows("SELECT * FROM messages")
        # It is marked after it is stored: a host that ends between the two has marked nothing.
        await seen(lambda: receipt(harness, room) == row["id"], "it is marked as read")

    assert (row["sender"], row["is_from_me"]) == (harness.owner.user_id, 1)
    (chat,) = await harness.rows("SELECT * FROM chats")
    assert (chat["jid"], chat["name"], chat["channel"], chat["is_group"]) == (
        address_of(room), "Family", "matrix", 1
    )  # fmt: skip


def receipt(harness, room):
    """Return the newest event that Andy has read, as the owner's client shows it."""
    found = harness.owner.now(room).get("m.receipt", {})
    return next((event for event, kinds in found.items() if harness.andy in kinds.get("m.read", {})), None)


async def test_who_types_is_told_while_they_do_and_andy_himself_never_is(harness):
    typed: list[str] = []
    harness.context = replace(harness.context, on_typing=typed.append)
    harness.channel = harness.new_channel()
    async with harness.living():
        room = await harness.add_room("Family")
        await harness.channel.set_typing(address_of(room), is_typing=True)
        await ask(harness.owner.write, room, "hello")
        await harness.until_heard("hello")
        assert typed == []
        # Who else types is told anew when Andy's own sign runs out.
        await harness.channel.set_typing(address_of(room), is_typing=False)
        path = f"rooms/{room}/typing/{harness.owner.user_id}"
        await ask(harness.owner.call, "PUT", path, typing=True, timeout=60_000)
        await until(lambda: typed, "it is told")
        told = len(typed)
        await ask(harness.owner.call, "PUT", path, typing=False)
        await ask(harness.owner.write, room, "and then")
        await harness.until_heard("hello", "and then")
    assert set(typed) == {address_of(room)}
    assert len(typed) == told


async def test_an_invitation_of_anybody_else_is_rejected(harness, homeserver):
    stranger = await ask(homeserver.person, "stranger")
    async with harness.living():
        room = await ask(stranger.make_room, harness.andy)
        members = f"rooms/{room}/members?membership=leave"
        await seen(lambda: stranger.call("GET", members)["chunk"], "rejected")
        assert await ask(stranger.members, room) == [stranger.user_id]
    assert await harness.rows("SELECT * FROM chats") == []


async def test_what_was_said_before_andy_came_is_not_for_him(harness):
    async with harness.living():
        room = await ask(harness.owner.make_room)
        await harness.register(room)
        for number in range(3):
            await ask(harness.owner.write, room, f"old {number}")
        await ask(harness.owner.call, "POST", f"rooms/{room}/invite", user_id=harness.andy)
        await seen(lambda: harness.andy in harness.owner.members(room), "he comes")
        await ask(harness.owner.write, room, "new")
        await harness.until_heard("new")


async def test_a_room_that_is_not_registered_is_known_and_nothing_in_it_is_stored(harness):
    async with harness.living():
        room = await ask(harness.owner.make_room, harness.andy, name="Strangers")
        await seen(lambda: harness.andy in harness.owner.members(room), "he comes")
        await ask(harness.owner.write, room, "@Andy hi")

        async def is_named() -> bool:
            return bool(await harness.rows("SELECT 1 FROM chats WHERE name = 'Strangers'"))

        await until(is_named, "known by its name")
        alone = await ask(harness.owner.make_room, harness.andy)
        await seen(lambda: harness.andy in harness.owner.members(alone), "he comes there, too")
        await ask(harness.owner.write, alone, "hello")

        async def has_called() -> bool:
            return len(await harness.rows("SELECT 1 FROM access_requests")) == 2

        await until(has_called, "both call: the room by his name, the chat of two by itself")
    assert await harness.texts() == []
    assert "m.receipt" not in await ask(harness.owner.now, room)
    calls = await harness.rows("SELECT words, is_owner, is_direct, people FROM access_requests ORDER BY id")
    assert calls == [
        {"words": "@Andy hi", "is_owner": 1, "is_direct": 0, "people": 2},
        {"words": "hello", "is_owner": 1, "is_direct": 1, "people": 2},
    ]


async def test_edits_redactions_replies_reactions_threads_and_mentions_come_in(harness):
    async with harness.living():
        room = await harness.add_room()
        first = await ask(harness.owner.write, room, "first")
        await harness.until_heard("first")
        edit = {"rel_type": "m.replace", "event_id": first}
        await ask(
            harness.owner.write,
            room,
            "* better",
            **{"m.new_content": {"body": "better"}, "m.relates_to": edit},
        )
        await harness.until_heard("better")
        answer = {"m.relates_to": {"m.in_reply_to": {"event_id": first}}}
        await ask(harness.owner.write, room, "> <@a:b> first\n\nand?", **answer)
        await harness.until_heard("better", "and?")
        sign = {"m.relates_to": {"rel_type": "m.annotation", "event_id": first, "key": "👍"}}
        await ask(harness.owner.send, room, "m.reaction", sign)
        await harness.until_heard("better", "and?", "[reacted 👍]")
        in_thread = {"rel_type": "m.thread", "event_id": first, "is_falling_back": True,
                     "m.in_reply_to": {"event_id": first}}  # fmt: skip
        mention = {"m.mentions": {"user_ids": [harness.andy]}, "m.relates_to": in_thread}
        await ask(harness.owner.write, room, "you there", **mention)
        await harness.until_heard("better", "and?", "[reacted 👍]", "you there")
        await ask(harness.owner.redact, room, first)
        await harness.until_heard("", "and?", "[reacted 👍]", "you there")

    rows = await harness.rows("SELECT * FROM messages ORDER BY seq")
    assert [(one["quoted_id"], one["thread"]) for one in rows] == [
        (None, None), (first, None), (first, None), (None, first),
    ]  # fmt: skip
    assert [one["is_request"] for one in rows] == [0, 1, 0, 1]


async def test_a_moderator_takes_back_what_others_and_andy_wrote(harness, homeserver):
    jane = await ask(homeserver.person, "moderated")
    async with harness.living():
        room = await harness.add_room(preset="public_chat")
        await ask(jane.call, "POST", f"join/{room}")
        nasty = await ask(jane.write, room, "nasty words")
        await harness.until_heard("nasty words")
        await harness.post(room, "Andy's words")
        await harness.until_sent()
        (own,) = [one for one in await ask(harness.owner.events, room) if one["sender"] == harness.andy]
        await ask(harness.owner.redact, room, nasty)
        await ask(harness.owner.redact, room, own["event_id"])

        async def is_blank() -> bool:
            rows = await harness.rows("SELECT content FROM messages")
            sent = await harness.rows("SELECT text FROM outbox")
            return not any(one["content"] for one in rows) and not any(one["text"] for one in sent)

        await until(is_blank, "the words are gone")


async def test_what_a_program_says_calls_nobody_and_a_mention_is_the_call_that_people_write(harness):
    async with harness.living():
        room = await harness.add_room()
        await ask(harness.owner.write, room, "@Andy done", msgtype="m.notice")
        mention = {"m.mentions": {"user_ids": [harness.andy]}}
        name = harness.andy[1:].partition(":")[0]
        await ask(harness.owner.write, room, f"{name}: add figs", **mention)
        link = f'<a href="https://matrix.to/#/{harness.andy}">Andy</a>, and tea'
        await ask(harness.owner.write, room, "Andy, and tea", formatted_body=link)
        await harness.until_heard("@Andy done", "@Andy add figs", "@Andy and tea")
    rows = await harness.rows("SELECT * FROM messages ORDER BY seq")
    assert [(one["is_request"], one["ignored_reason"]) for one in rows] == [
        (0, events.NOTICE), (1, None), (1, None)
    ]  # fmt: skip


async def test_who_asks_to_compare_keys_is_answered_in_the_room_and_between_devices(harness):
    async with harness.living():
        room = await harness.add_room()
        request = {"msgtype": "m.key.verification.request", "to": harness.andy, "from_device": "D",
                   "methods": ["m.sas.v1"]}  # fmt: skip
        asked = await ask(harness.owner.write, room, "please verify", **request)
        await seen(lambda: harness.owner.events(room, "m.key.verification.cancel"), "it is declined")
        (declined,) = await ask(harness.owner.events, room, "m.key.verification.cancel")
        assert declined["content"]["m.relates_to"]["event_id"] == asked
        body = {**request, "transaction_id": "T1", "timestamp": 1}
        messages_to = {harness.andy: {"*": body | {"from_device": harness.owner.device_id}}}
        await ask(
            harness.owner.call, "PUT", "sendToDevice/m.key.verification.request/t1", messages=messages_to
        )
        heard: list[str] = []

        def is_declined() -> bool:
            events_to_device = harness.owner.call("GET", "sync?timeout=0")["to_device"]["events"]
            heard.extend(one["content"].get("transaction_id", "") for one in events_to_device)
            return "T1" in heard

        await seen(is_declined, "it is declined, too")


async def test_the_owner_hears_in_main_that_a_registered_room_was_replaced(harness):
    async with harness.living():
        main = await harness.add_room("Main", folder="main")
        async with harness.database.transaction() as tx:
            await tx.execute("UPDATE registered_groups SET is_main = 1 WHERE folder = 'main'")
        room = await harness.add_room("Family")
        answer = await ask(harness.owner.call, "POST", f"rooms/{room}/upgrade", new_version="10")
        new = answer["replacement_room"]
        await seen(lambda: harness.owner.texts(main, harness.andy), "it is told")
        (text,) = await ask(harness.owner.texts, main, harness.andy)
    assert f"andy groups add-chat family matrix:{new} --notify" in text


async def test_a_reply_to_andys_words_calls_him_by_the_id_that_the_host_knows(harness):
    async with harness.living():
        room = await harness.add_room()
        ours = await harness.post(room, "Shall I?")
        await harness.until_sent()
        (event,) = await ask(harness.owner.events, room)
        relation = {"m.relates_to": {"m.in_reply_to": {"event_id": event["event_id"]}}}
        await ask(harness.owner.write, room, "yes", **relation)
        await harness.until_heard("yes")

    (row,) = await harness.rows("SELECT * FROM messages WHERE is_bot_message = 0")
    assert (row["quoted_id"], row["quoted_content"]) == (ours, "Shall I?")


async def test_files_come_into_the_groups_folder_and_leave_from_it(harness, tmp_path):
    async with harness.living():
        room = await harness.add_room()
        uri = await ask(harness.owner.upload, b"a picture", "image/png")
        picture = {"url": uri, "info": {"mimetype": "image/png", "size": 9}, "filename": "cat.png"}
        await ask(
            harness.owner.send, room, "m.room.message", {"msgtype": "m.image", "body": "my cat", **picture}
        )
        big = {"msgtype": "m.file", "body": "big.iso", "url": uri, "info": {"size": 10_001}}
        await ask(harness.owner.send, room, "m.room.message", big)
        await until(lambda: has_no_file_to_come(harness, 2), "both files are settled")

        (tmp_path / "plan").write_bytes(b"%PDF plan")
        file = Attachment(path=tmp_path / "plan", name="plan.pdf", mime="application/pdf")
        await harness.post(room, "the **plan**", attachment=file)
        await harness.until_sent()

    cat, large = await harness.texts()
    assert cat.startswith("my cat\n[image attachments/")
    assert large == "[document, 0.0 MB: too large to fetch, at most 0.0 MB]"
    (kept,) = (tmp_path / "groups/family/attachments").iterdir()
    assert kept.read_bytes() == b"a picture"
    assert list((tmp_path / description.FOLDER).glob("in-*")) == []
    content = (await ask(harness.owner.events, room))[-1]["content"]
    assert (content["msgtype"], content["body"], content["filename"]) == (
        "m.file", "the **plan**", "plan.pdf"
    )  # fmt: skip
    assert await ask(harness.owner.download, content["url"]) == b"%PDF plan"


async def test_a_file_is_fetched_after_the_pauses_that_the_homeserver_asks_for_while_they_are_short(
    tmp_path, database, homeserver, monkeypatch
):
    refusals = {"/media/download/": [0.2, 0.3]}
    async with strict_entrance(homeserver, refusals) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            room = await harness.add_room()
            uri = await ask(harness.owner.upload, b"a picture", "image/png")
            cat = {"msgtype": "m.image", "body": "cat.png", "url": uri, "info": {"size": 9}}
            await ask(harness.owner.send, room, "m.room.message", cat)
            await until(lambda: has_no_file_to_come(harness, 1), "the picture is there")
            monkeypatch.setattr(attachments, "FETCH_SECONDS", 0.5)
            refusals["/media/download/"] += [3600.0]
            await ask(harness.owner.send, room, "m.room.message", {**cat, "body": "dog.png"})
            await until(lambda: has_no_file_to_come(harness, 2), "it is given up")
    came, given_up = await harness.texts()
    assert came.startswith("[image attachments/")
    assert given_up == "[image: it could not be fetched]"
    assert refusals == {"/media/download/": []}


async def has_no_file_to_come(harness, count):
    rows = await harness.rows("SELECT file_until_ms FROM messages WHERE file_words IS NOT NULL")
    return len(rows) == count and all(one["file_until_ms"] is None for one in rows)


# Out


async def test_an_answer_has_its_marks_its_question_its_thread_and_who_it_is_for(harness, monkeypatch):
    jid = None
    async with harness.living():
        room = await harness.add_room()
        jid = address_of(room)
        question = await ask(harness.owner.write, room, "where?")
        await harness.until_heard("where?")
        async with harness.database.reading() as tx:
            asked = await messages.find(tx, jid, question)
        await harness.channel.send(jid, "At the **lake** <b>", "M1", quote=asked)
        await harness.channel.send(jid, "in it", "M2", thread=question)
        person = ChatMember(jid=harness.owner.user_id, name="Jane")
        await harness.channel.send(jid, "for you", "M3", mention=person)
        await harness.channel.set_typing(jid, is_typing=True)
        await seen(
            lambda: harness.andy in harness.owner.now(room).get("m.typing", {}).get("user_ids", []), "typing"
        )
        await harness.channel.react(asked, "👀")
        await harness.channel.react(asked, "✅")
        signs = [
            one["content"].get("m.relates_to") for one in await ask(harness.owner.events, room, "m.reaction")
        ]

        def out_of_reach(*_args: object) -> None:
            raise ConnectionResetError

        monkeypatch.setattr(nio.AsyncClient, "room_get_event_relations", out_of_reach)
        with pytest.raises(ChannelDown, match="cannot be reached"):
            await harness.channel.react(asked, "")  # the sign is still there

    quoted, in_thread, mentioned = [one["content"] for one in (await ask(harness.owner.events, room))[1:]]
    assert quoted["formatted_body"] == "<p>At the <strong>lake</strong> &lt;b&gt;</p>"
    assert quoted["m.relates_to"] == {"m.in_reply_to": {"event_id": question}}
    assert in_thread["m.relates_to"]["rel_type"] == "m.thread"
    assert mentioned["body"] == "Jane: for you"
    assert mentioned["m.mentions"] == {"user_ids": [harness.owner.user_id]}
    # The first sign was taken back, so its event says nothing any more.
    assert [one["key"] for one in signs if one] == ["✅"]


async def test_the_same_message_id_is_one_event_also_after_the_homeserver_has_died(harness, homeserver):
    async with harness.living():
        room = await harness.add_room()
        first = await harness.channel.send(address_of(room), "once", "M1")
        await asyncio.to_thread(homeserver.kill)
        with pytest.raises(ChannelDown):
            await harness.channel.send(address_of(room), "once", "M1")
        await asyncio.to_thread(homeserver.start)
        await harness.until_state("connected")
        assert await harness.channel.send(address_of(room), "once", "M1") == first
    assert await ask(harness.owner.texts, room, harness.andy) == ["once"]


async def test_a_homeserver_that_restarts_in_the_middle_loses_and_doubles_nothing(harness, homeserver):
    async with harness.living():
        room = await harness.add_room()
        for number in range(5):
            await harness.post(room, f"out {number}")
            await ask(harness.owner.write, room, f"in {number}")
        await asyncio.to_thread(homeserver.kill)
        await harness.until_state("disconnected")
        for number in range(5, 10):
            await harness.post(room, f"out {number}")
        await asyncio.to_thread(homeserver.start)
        for number in range(5, 10):
            await ask(harness.owner.write, room, f"in {number}")
        await harness.until_heard(*(f"in {number}" for number in range(10)))
        await harness.until_sent()
    assert await ask(harness.owner.texts, room, harness.andy) == [f"out {number}" for number in range(10)]


async def test_a_homeserver_that_asks_for_pauses_shows_each_text_once_and_in_order(
    tmp_path, database, homeserver
):
    del homeserver  # this test needs one that is strict, where any can be had
    with Synapse(tmp_path / "server", messages_per_second=2) as slow:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, slow)
        with structlog.testing.capture_logs() as logs:
            async with harness.living():
                room = await harness.add_room()
                for number in range(6):
                    await harness.post(room, f"out {number}")
                await harness.until_sent()
        shown = await ask(harness.owner.texts, room, harness.andy)
    assert shown == [f"out {number}" for number in range(6)]
    later = [one["reason"] for one in logs if one["event"] == "delivery.later"]
    assert later
    assert all(reason.startswith("The homeserver asks to wait") for reason in later)


async def test_a_pause_for_messages_to_devices_ends_no_connection_and_they_are_sent_after_it(
    tmp_path, database, homeserver
):
    faults: dict = {"/sendToDevice/": []}
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            room = await harness.add_room()
            waiting = harness.channel._session._client.olm.outgoing_to_device_messages
            owner = harness.owner
            faults["/sendToDevice/"].append(600.0)
            waiting.append(nio.ToDeviceMessage("m.dummy", owner.user_id, owner.device_id, {}))
            for text in ("one", "two"):
                await ask(owner.write, room, text)
            await until(
                lambda: not (waiting or faults["/sendToDevice/"]) or harness.state == "disconnected",
                "it is sent",
            )
            assert harness.state == "connected"
            await harness.until_heard("one", "two")


async def test_a_long_pause_for_one_room_or_a_reaction_is_passed_on_and_none_shortens_it(
    tmp_path, database, homeserver
):
    faults: dict = {}
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            one = await harness.add_room("One", folder="one")
            other = await harness.add_room("Other", folder="other")
            question = await ask(harness.owner.write, one, "where?")
            await harness.until_heard("where?")
            async with harness.database.reading() as tx:
                asked = await messages.find(tx, address_of(one), question)
            faults["/send/m.reaction/"] = [600.0]
            with pytest.raises(ChannelDown) as down:
                await harness.channel.react(asked, "👀")
            assert down.value.pause_seconds > 300

            session = harness.channel._session
            session._silent_until = 0.0
            faults["/send/m.room.message/"] = [600.0, 0.2]
            body = {"msgtype": "m.text", "body": "hello"}
            # Both requests are under way when the first answer comes.
            await asyncio.gather(
                *[session.send(room, "m.room.message", body, transaction=room) for room in (one, other)],
                return_exceptions=True,
            )
            assert faults["/send/m.room.message/"] == []
            with pytest.raises(ChannelDown) as down:
                await harness.channel.send(address_of(one), "again", "M3")
            assert down.value.pause_seconds > 300


async def test_a_homeserver_that_wants_a_pause_is_not_taken_for_one_without_a_reaction(
    tmp_path, database, homeserver
):
    faults: dict = {}
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            room = await harness.add_room()
            question = await ask(harness.owner.write, room, "where?")
            await harness.until_heard("where?")
            async with harness.database.reading() as tx:
                asked = await messages.find(tx, address_of(room), question)
            await harness.channel.react(asked, "👀")
            faults["/relations/"] = [600.0]
            with pytest.raises(ChannelDown) as down:
                await harness.channel.react(asked, "")
            assert down.value.pause_seconds > 300
            faults["/relations/"] = [Page(502)]
            with pytest.raises(ChannelDown):
                await harness.channel.react(asked, "")
            faults["/relations/"] = [0.2]
            await harness.channel.react(asked, "")
            reactions = await ask(harness.owner.events, room, "m.reaction")
            assert [one["content"] for one in reactions] == [{}], "it is taken away"
            unknown = replace(asked, id="$" + "x" * 43)
            await harness.channel.react(unknown, "")  # there is nothing to take away


async def test_a_file_is_uploaded_once_for_its_message_and_anew_for_another_homeserver(
    tmp_path, database, homeserver, monkeypatch
):
    (tmp_path / "plan").write_bytes(b"%PDF plan")
    file = Attachment(path=tmp_path / "plan", name="plan.pdf", mime="application/pdf")
    refusals: dict[str, list[float]] = {"/send/m.room.message/": []}

    uploads: list[str] = []
    upload = MatrixSession.upload

    async def counted(session, *given):
        uploads.append(session.homeserver)
        return await upload(session, *given)

    monkeypatch.setattr(MatrixSession, "upload", counted)
    async with strict_entrance(homeserver, refusals) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            jid = address_of(await harness.add_room())
            refusals["/send/m.room.message/"] += [0.2]
            with pytest.raises(ChannelDown, match="asks to wait"):
                await harness.channel.send(jid, "", "M1", attachment=file)

            async def is_sent() -> bool:
                try:
                    return bool(await harness.channel.send(jid, "", "M1", attachment=file))
                except ChannelDown:
                    await asyncio.sleep(0.02)
                    return False

            await until(is_sent, "sent after the pause")
            assert len(uploads) == 1

            refusals["/send/m.room.message/"] += [3600.0]
            for _ in range(2):
                with pytest.raises(ChannelDown):
                    await harness.channel.send(jid, "", "M2", attachment=file)
            assert len(uploads) == 2
            monkeypatch.setattr(channel, "MAX_UPLOADED", 2)
            for number in range(3, 6):
                with pytest.raises(ChannelDown):
                    await harness.channel.send(jid, "", f"M{number}", attachment=file)
            assert len(harness.channel._uploaded) == 2
            assert len(uploads) == 5

            answers = {"homeserver": homeserver.address, "user": harness.andy, "password": "secret",
                       "owner": harness.owner.user_id}  # fmt: skip
            await login.log_in(harness.home, answers)
            await harness.until_state("connected")
            await until(
                lambda: (
                    harness.channel._session and harness.channel._session.homeserver == homeserver.address
                ),
                "there",
            )
            await harness.channel.send(jid, "", "M5", attachment=file)
            assert uploads == [address] * 5 + [homeserver.address]


async def test_all_of_a_long_cut_comes_in_once_and_in_order(harness):
    async with harness.living():
        room = await harness.add_room()
        await ask(harness.owner.write, room, "before")
        await harness.until_heard("before")
    count = 130  # more than the homeserver tells of at once

    def write() -> None:
        for number in range(count):
            harness.owner.write(room, f"m{number}")

    await asyncio.to_thread(write)
    harness.channel = harness.new_channel()
    async with harness.living():
        await harness.until_heard("before", *(f"m{number}" for number in range(count)))


async def test_a_crash_between_two_messages_of_a_page_stores_each_once(harness):
    async with harness.living():
        room = await harness.add_room()
        await ask(harness.owner.write, room, "m0")
        await harness.until_heard("m0")
    for number in range(1, 31):
        await ask(harness.owner.write, room, f"m{number}")

    class Crash(BaseException):
        pass

    taken = []

    async def receive(message, *, cursor=None):
        if len(taken) == 12:
            raise Crash
        taken.append(message)
        await harness.intake.receive(message, cursor=cursor)

    with pytest.raises(BaseExceptionGroup):
        await harness.new_channel().run(receive)
    harness.channel = harness.new_channel()
    async with harness.living():
        await harness.until_heard(*(f"m{number}" for number in range(31)))


async def test_a_login_that_the_homeserver_has_ended_is_told_and_another_one_goes_on(harness, homeserver):
    async with harness.living():
        room = await harness.add_room()
        ended = login.read_login(harness.home)
        await ask(lambda: homeserver.post("logout", token=ended.token))
        await harness.until_state("logged_out")
        assert "andy channels add matrix" in harness.channel.status()["advice"]
        with pytest.raises(ChannelDown, match="andy channels add matrix"):
            await harness.channel.send(address_of(room), "x", "M1")

        answers = {"homeserver": homeserver.address, "user": harness.andy, "password": "secret",
                   "owner": harness.owner.user_id}  # fmt: skip
        await login.log_in(harness.home, answers)
        await harness.until_state("connected")
        await harness.channel.send(address_of(room), "x", "M1")
    async with harness.database.reading() as tx:
        assert login.read_login(harness.home).device_id in (await chats.cursor(tx, "matrix"))


# Nothing twice


async def log_in_again(harness, address):
    answers = {"homeserver": address, "user": harness.andy, "password": "secret",
               "owner": harness.owner.user_id}  # fmt: skip
    await login.log_in(harness.home, answers)
    harness.channel = harness.new_channel()


async def stop_after_a_swallowed_answer(harness, faults, room, text):
    """Have a text sent whose answer is lost, and end before it is tried again."""
    faults["/send/m.room.message/"] += [Fault.SWALLOWED] + [Fault.HANGS] * 20
    await harness.post(room, text)
    await seen(lambda: text in harness.owner.texts(room, harness.andy), "it is in the room")


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_a_send_whose_answer_was_lost_is_in_the_room_once_after_another_login(
    tmp_path, database, homeserver, is_encrypted
):
    encryption = {"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
    faults: dict = {"/send/": []}
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        kind = "m.room.encrypted" if is_encrypted else "m.room.message"
        async with harness.living():
            room = await harness.add_room(initial_state=[encryption] if is_encrypted else [])
            faults["/send/"] += [Fault.SWALLOWED] + [Fault.HANGS] * 20
            await harness.post(room, "basil")
            await seen(lambda: harness.owner.events(room, kind), "it is in the room")
        faults["/send/"].clear()
        await log_in_again(harness, address)
        async with harness.living():
            await harness.until_sent()
            (row,) = await harness.rows("SELECT * FROM messages WHERE is_bot_message = 1")
            await harness.post(room, "next")
            await harness.until_sent()
        found = await ask(harness.owner.events, room, kind)
    assert [one["event_id"] for one in found][:1] == [row["channel_id"]]
    assert len(found) == 2


async def test_a_send_whose_answer_was_lost_is_in_the_room_once_after_the_homeserver_has_forgotten_it(
    tmp_path, database, homeserver
):
    faults: dict = {"/send/m.room.message/": []}
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            room = await harness.add_room()
            await stop_after_a_swallowed_answer(harness, faults, room, "chive")
        faults["/send/m.room.message/"].clear()
        async with harness.database.transaction() as tx:
            await tx.execute("UPDATE outbox SET tried_ms = tried_ms - 25 * 3600000")
        # As it does by itself with what is a day old.
        await asyncio.to_thread(homeserver.forget_transactions)
        async with harness.living():
            await harness.until_sent()
        assert await ask(harness.owner.texts, room, harness.andy) == ["chive"]


async def test_a_message_that_is_not_in_the_room_is_sent_by_the_next_login(tmp_path, database, homeserver):
    faults: dict = {"/send/m.room.message/": []}
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            room = await harness.add_room()
            faults["/send/m.room.message/"] += [Page(502)] * 50
            await harness.post(room, "sage")
            await until(lambda: len(faults["/send/m.room.message/"]) < 50, "it was tried")
        faults["/send/m.room.message/"].clear()
        await log_in_again(harness, address)
        async with harness.living():
            await harness.until_sent()
        assert await ask(harness.owner.texts, room, harness.andy) == ["sage"]


async def test_a_message_that_may_be_among_too_many_others_ends_as_unknown(harness, homeserver, monkeypatch):
    monkeypatch.setattr(session_module, "MAX_SEARCHED_EVENTS", 1)
    async with harness.living():
        room = await harness.add_room()
        jid = address_of(room)
        await harness.channel.send(jid, "one", "M1")
        await harness.channel.send(jid, "two", "M2")
        monkeypatch.setattr(session_module, "PAGE_EVENTS", 1)
        with pytest.raises(OutcomeUnknown):
            await harness.channel._session.find_own(room, "M0", since_ms=0)
        assert await harness.channel._session.find_own(room, "M2", since_ms=0)


# What the homeserver or a server before it refuses


async def test_what_a_server_on_the_way_refuses_is_told_once_and_the_chat_goes_on(
    tmp_path, database, homeserver
):
    faults: dict = {"/send/m.room.message/": [], "/upload": []}
    (tmp_path / "film").write_bytes(b"film")
    film = Attachment(path=tmp_path / "film", name="film.mp4", mime="video/mp4")
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            room = await harness.add_room()
            faults["/upload"] += [Page(413)]
            await harness.post(room, "", attachment=film)
            await harness.post(room, "jam")
            await seen(lambda: len(harness.owner.texts(room, harness.andy)) == 2, "it goes on")
            faults["/send/m.room.message/"] += [Page(403)]
            await harness.post(room, "DROP TABLE")
            await harness.post(room, "pea")
            await seen(lambda: len(harness.owner.texts(room, harness.andy)) == 4, "it goes on")
        jam, about_film, pea, about_text = await ask(harness.owner.texts, room, harness.andy)
        dead = await harness.rows("SELECT state, attempts FROM outbox WHERE state <> 'sent'")
    assert (jam, pea) == ("jam", "pea")
    assert about_film.startswith("⚠️ I could not send the file film.mp4: it is too large for a server before")
    assert "client_max_body_size" in about_film
    assert about_text.startswith("⚠️ I could not send an answer: a server before the homeserver refuses it")
    assert [(one["state"], one["attempts"]) for one in dead] == [("dead", 1), ("dead", 1)]


async def test_a_notice_that_is_refused_too_is_no_reason_for_another_one(tmp_path, database, homeserver):
    faults: dict = {"/send/m.room.message/": []}
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            room = await harness.add_room()
            faults["/send/m.room.message/"] += [Page(403)] * 2
            await harness.post(room, "refused")

            async def is_over() -> bool:
                rows = await harness.rows("SELECT state FROM outbox")
                return [one["state"] for one in rows] == ["dead", "dead"]

            await until(is_over, "both are given up")
            await harness.post(room, "jam")
            await seen(lambda: harness.owner.texts(room, harness.andy) == ["jam"], "it goes on")


async def test_a_way_that_refuses_all_is_waited_for(tmp_path, database, homeserver):
    faults: dict = {"/send/m.room.message/": [], "/whoami": []}
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            jid = address_of(await harness.add_room())
            for page in (403, 404, 407, 502, 503, 504):
                faults["/send/m.room.message/"] += [Page(page)]
                faults["/whoami"] += [Page(page)]
                with pytest.raises(ChannelDown):
                    await harness.channel.send(jid, "mint", "M1")
                faults["/whoami"].clear()
            await harness.channel.send(jid, "mint", "M1")


async def test_a_file_that_is_too_slow_for_the_line_is_given_up_after_a_few_tries(
    tmp_path, database, homeserver, monkeypatch
):
    monkeypatch.setattr(session_module, "UPLOAD_SECONDS", 0.3)
    faults: dict = {"/upload": []}
    (tmp_path / "film").write_bytes(b"film")
    film = Attachment(path=tmp_path / "film", name="film.mp4", mime="video/mp4")
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            jid = address_of(await harness.add_room())
            for expected in (ChannelDown, ChannelDown, ChannelRefused):
                faults["/upload"] += [Fault.HANGS]
                with pytest.raises(expected, match=r"film\.mp4"):
                    await harness.channel.send(jid, "", "M1", attachment=film)


async def test_a_send_that_hangs_holds_up_its_own_room_alone(tmp_path, database, homeserver):
    faults: dict = {}
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            one = await harness.add_room("One", folder="one")
            other = await harness.add_room("Other", folder="other")
            faults[f"/rooms/{one}/send/"] = [Fault.HANGS]
            await harness.post(one, "hangs")
            await until(lambda: not faults[f"/rooms/{one}/send/"], "it hangs")
            await harness.post(other, "goes on")
            await seen(
                lambda: harness.owner.texts(other, harness.andy) == ["goes on"], "the other one goes on"
            )
            assert await ask(harness.owner.texts, one, harness.andy) == []


# Invitations


async def test_an_invitation_whose_answer_fails_is_answered_later_and_after_a_restart(
    tmp_path, database, homeserver, monkeypatch
):
    monkeypatch.setattr(incoming, "FIRST_PAUSE_SECONDS", 0.05)
    faults: dict = {"/join": [Page(502)]}
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            first = await ask(harness.owner.make_room, harness.andy)
            await seen(lambda: harness.andy in harness.owner.members(first), "he comes at the second try")

            monkeypatch.setattr(incoming, "FIRST_PAUSE_SECONDS", 3600.0)
            faults["/join"] += [Page(502)]
            second = await ask(harness.owner.make_room, harness.andy)
            await until(lambda: not faults["/join"], "the join has failed")
        harness.channel = harness.new_channel()
        async with harness.living():
            await seen(lambda: harness.andy in harness.owner.members(second), "he comes after a restart")


# The login


async def test_a_login_by_password_leaves_a_token_that_only_the_owner_can_read(tmp_path, homeserver):
    andy = await ask(homeserver.person, "by-password")
    answers = {
        "homeserver": homeserver.address,
        "user": andy.user_id,
        "password": "secret",
        "owner": "@me:localhost",
    }
    assert "@me:localhost may invite" in await login.log_in(tmp_path, answers)

    path = tmp_path / description.LOGIN
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret" not in path.read_text()
    assert doctor_checks.account(tmp_path) == andy.user_id
    first = login.read_login(tmp_path)
    await login.log_in(tmp_path, answers)
    with pytest.raises(AssertionError):
        await ask(lambda: homeserver.post("account/whoami", token=first.token, method="GET"))

    assert "is logged out" in await login.log_out(tmp_path)
    assert not path.exists()
    assert doctor_checks.account(tmp_path) == ""


@pytest.mark.parametrize("stored", [b"{", b"\xff", b"{}"])
async def test_a_stored_login_that_is_broken_is_replaced_and_deleted(tmp_path, homeserver, stored):
    andy = await ask(homeserver.person, f"broken-{stored.hex()}")
    answers = {
        "homeserver": homeserver.address,
        "user": andy.user_id,
        "password": "secret",
        "owner": "@me:localhost",
    }
    path = tmp_path / description.LOGIN
    path.parent.mkdir(parents=True)
    path.write_bytes(stored)
    with pytest.raises(ChannelDown, match="andy channels add matrix"):
        login.read_login(tmp_path)
    assert "end its session 'Andy'" in await login.log_in(tmp_path, answers)
    assert login.read_login(tmp_path).user_id == andy.user_id
    assert "end its session" not in await login.log_in(tmp_path, answers)

    path.write_bytes(stored)
    assert "end the session 'Andy'" in await login.log_out(tmp_path)
    assert not path.exists()
    assert "Nobody" in await login.log_out(tmp_path)


async def test_a_login_that_cannot_be_stored_is_ended_at_its_homeserver(tmp_path, homeserver, monkeypatch):
    andy = await ask(homeserver.person, "full-disk")
    answers = {
        "homeserver": homeserver.address,
        "user": andy.user_id,
        "password": "secret",
        "owner": "@me:localhost",
    }
    unstored = []

    def fail(home: Path, new: login.MatrixLogin) -> None:
        unstored.append(new)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(login, "_write_login", fail)
    with pytest.raises(ChannelDown, match="No space left"):
        await login.log_in(tmp_path, answers)
    (new,) = unstored
    with pytest.raises(AssertionError):
        await ask(lambda: homeserver.post("account/whoami", token=new.token, method="GET"))


async def test_a_new_login_ends_the_keys_of_the_old_one_and_one_that_is_not_stored_leaves_them(
    tmp_path, homeserver, monkeypatch
):
    andy = await ask(homeserver.person, f"keys-{secrets.token_hex(4)}")
    answers = {
        "homeserver": homeserver.address,
        "user": andy.user_id,
        "password": "secret",
        "owner": "@me:localhost",
    }
    await login.log_in(tmp_path, answers)
    old = login.read_login(tmp_path)
    assert old is not None
    await login.make_client(tmp_path, old).close()
    kept = sorted((tmp_path / login.CRYPTO).iterdir())
    assert kept

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(login, "write_whole", fail)
        with pytest.raises(ChannelDown, match="No space left"):
            await login.log_in(tmp_path, answers)
    assert login.read_login(tmp_path) == old
    assert sorted((tmp_path / login.CRYPTO).iterdir()) == kept

    write_whole = login.write_whole

    def write_and_open(*arguments: Any, **options: Any) -> None:
        """Write the login, and have a running host open its keys at once."""
        write_whole(*arguments, **options)
        written = login.read_login(tmp_path)
        assert written is not None
        login.make_client(tmp_path, written)

    monkeypatch.setattr(login, "write_whole", write_and_open)
    await login.log_in(tmp_path, answers)
    new = login.read_login(tmp_path)
    assert new is not None
    names = [path.name for path in (tmp_path / login.CRYPTO).iterdir()]
    assert names
    assert all(new.device_id in name for name in names)


@pytest.mark.parametrize(("changes", "error", "says"), [
    ({"password": "wrong"}, ChannelRefused, "Invalid username or password"),
    ({"homeserver": "http://127.0.0.1:1"}, ChannelDown, "cannot be reached"),
    ({"homeserver": "http://matrix.example.org"}, BadRequest, "in the open"),
    ({"homeserver": "ftp://x"}, BadRequest, "no address of a server"),
    ({"owner": "me"}, BadRequest, "'me' is no account"),
    ({"owner": "@wrong:localhost"}, BadRequest, "an account of his own"),
])  # fmt: skip
async def test_a_login_that_fails_says_why_and_writes_nothing(tmp_path, homeserver, changes, error, says):
    answers = {
        "homeserver": homeserver.address,
        "user": "@wrong:localhost",
        "password": "x",
        "owner": "@me:localhost",
    }
    with pytest.raises(error, match=says):
        await login.log_in(tmp_path, answers | changes)
    assert not (tmp_path / "data").exists()


async def test_the_token_is_in_no_address_that_the_homeserver_writes_down(tmp_path, database, homeserver):
    harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver)
    async with harness.living():
        room = await harness.add_room()
        await harness.post(room, "hello")
        await harness.until_sent()
    asked = homeserver.requests()
    assert any("/send/m.room.message/" in line for line in asked)
    assert not any("access_token" in line or login.read_login(tmp_path).token in line for line in asked)


async def test_setup_logs_in_and_makes_a_room_of_it_main(tmp_path, homeserver, monkeypatch):
    andy = await ask(homeserver.person, "set-up")
    monkeypatch.setenv("ANDY_HOME", str(tmp_path))
    monkeypatch.delenv("ANDY_CHANNELS", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO("secret\n"))
    answers = {"homeserver": homeserver.address, "user": andy.user_id, "owner": "@me:localhost"}
    flags = SetupFlags(
        credential="none",
        whatsapp=False,
        channel="matrix",
        answers=answers,
        main="matrix:!room:localhost",
        test=False,
    )
    await Setup(tmp_path, flags, SetupPrompts(is_possible=False)).run()

    assert doctor_checks.account(tmp_path) == andy.user_id
    assert settings.load(tmp_path, {}).channels == ("whatsapp", "matrix")
    (row,) = terminal.read(tmp_path, lambda tx: group_reports.group_rows(tx))
    assert row["jid"] == "matrix:!room:localhost"


# Encrypted rooms


async def test_an_encrypted_room_is_read_and_answered(harness, tmp_path, homeserver):
    own = login.MatrixLogin(
        homeserver=homeserver.address,
        user_id=harness.owner.user_id,
        device_id=harness.owner.device_id,
        token=harness.owner.token,
        owner="",
    )
    encryption = {"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
    async with harness.living(), MatrixSession.open(tmp_path / "owners", own) as owner:
        place = (await owner.sync(None)).position
        room = await harness.add_room(initial_state=[encryption])
        heard: list[str] = []

        async def look() -> bool:
            nonlocal place
            changes = await owner.sync(place)
            place = changes.position
            heard.extend(one["content"].get("body", "") for part in changes.rooms for one in part.events)
            return "Hello **Jane**" in heard

        await look()
        await owner.send(room, "m.room.message", {"msgtype": "m.text", "body": "a secret"}, transaction="O1")
        await harness.until_heard("a secret")
        (event,) = await ask(harness.owner.events, room, "m.room.encrypted")
        assert "a secret" not in str(event)
        await harness.post(room, "Hello **Jane**")
        await harness.until_sent()
        await until(look, "the owner's device reads the answer")
    assert await ask(harness.owner.texts, room, harness.andy) == []


async def test_a_file_of_an_encrypted_room_goes_with_the_keys_that_open_it(harness, tmp_path):
    (tmp_path / "plan").write_bytes(b"%PDF plan" * 1000)
    file = Attachment(path=tmp_path / "plan", name="plan.pdf", mime="application/pdf")
    encryption = {"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
    async with harness.living():
        room = await harness.add_room(initial_state=[encryption])
        source = (await harness.channel._session.upload(room, file))["source"]["file"]
        body = await ask(harness.owner.download, source["url"])
    assert body != file.path.read_bytes()
    assert session_module._decrypted_file(body, source) == file.path.read_bytes()


async def test_the_keys_of_a_file_are_there_before_a_homeserver_can_have_all_of_it(tmp_path):
    plain = b"%PDF plan" * 1000
    (tmp_path / "plan").write_bytes(plain)
    keys, sent = {}, b""
    async with aiofiles.open(tmp_path / "plan", "rb") as opened:
        async for piece in session_module._encrypted(opened, keys):
            sent += piece
            # From here on the answer may be there, and nothing more is read.
            assert len(sent) < len(plain) or keys
    assert session_module._decrypted_file(sent, keys) == plain


async def test_a_file_that_is_refused_before_it_is_read_is_closed(tmp_path, database, homeserver):
    faults: dict = {"/media/v3/upload": [3600.0]}
    (tmp_path / "film").write_bytes(b"film" * 400_000)  # more than is on its way before the refusal is there
    film = Attachment(path=tmp_path / "film", name="film.mp4", mime="video/mp4")
    async with strict_entrance(homeserver, faults) as address:
        harness = await asyncio.to_thread(MatrixHome, tmp_path, database, homeserver, address=address)
        async with harness.living():
            jid = address_of(await harness.add_room())
            with pytest.raises(ChannelDown):
                await harness.channel.send(jid, "", "M1", attachment=film)
            opened = await asyncio.to_thread(lambda: [one.path for one in psutil.Process().open_files()])
    assert str(film.path) not in opened


async def test_an_encrypted_room_is_refused_with_a_sentence_where_it_cannot_be_read(harness, monkeypatch):
    monkeypatch.setattr(MatrixSession, "is_readable", lambda self, room: False)
    encrypted = {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x", "session_id": "s", "device_id": "D",
                 "sender_key": "k"}  # fmt: skip
    async with harness.living():
        room = await harness.add_room()
        await ask(harness.owner.send, room, "m.room.encrypted", encrypted)
        await seen(lambda: harness.andy not in harness.owner.members(room), "he leaves")
        assert "encrypted" in (await ask(harness.owner.texts, room, harness.andy))[0]
