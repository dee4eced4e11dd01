"""What is made of WhatsApp's messages. The events are of the library's own classes."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tests.support.whatsapp_library", exc_type=ImportError)

from google.protobuf.descriptor import FieldDescriptor
from neonize.proto.Neonize_pb2 import JID, MessageInfo, MessageSource
from neonize.proto.Neonize_pb2 import Message as MessageEvent
from neonize.proto.waCommon.WACommon_pb2 import MessageKey
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.proto.waE2E.WAWebProtobufsE2E_pb2 import Message

from orchestrator.channels.whatsapp import addresses, convert, message_text, protocol
from orchestrator.channels.whatsapp.addresses import Directory
from orchestrator.channels.whatsapp.convert import IgnoredEvent, OwnAccount
from orchestrator.channels.whatsapp.protocol import BridgeMessage, Delivered, from_bridge, line_of
from tests.doubles import whatsapp_events as wa
from tests.support.json_schemas import examples

ME = OwnAccount(phone=wa.ANDY, lid=wa.ANDY_LID)
PEOPLE = Directory(phones={wa.JANE_LID: wa.JANE, wa.ANDY_LID: wa.ANDY}, names={wa.JANE: "Jane"})


def made(event: MessageEvent, *, people: Directory = PEOPLE, me: OwnAccount = ME) -> BridgeMessage:
    found = convert.convert(event, people=people, me=me)
    assert isinstance(found, BridgeMessage), found
    return found


def dropped(event: MessageEvent) -> str:
    found = convert.convert(event, people=PEOPLE, me=ME)
    assert isinstance(found, IgnoredEvent), found
    return found.reason


def test_a_plain_text_is_told_with_its_chat_sender_and_time():
    found = made(wa.heard("@Andy hello"))

    assert (found.chat, found.is_group, found.id) == (f"{wa.FAMILY}@g.us", True, "3AAA")
    assert (found.sender, found.sender_name) == (f"{wa.JANE}@s.whatsapp.net", "Jane")
    assert (found.text, found.sent_ms, found.is_from_me) == ("@Andy hello", 1_780_000_000_000, False)


def test_a_time_in_seconds_is_a_time_too():
    assert made(wa.heard("x", at_ms=1_780_000_000)).sent_ms == 1_780_000_000_000


def test_an_extended_text_is_a_text():
    assert made(wa.heard(wa.text("see https://example.org"))).text == "see https://example.org"


@pytest.mark.parametrize(
    "wrapper",
    ["ephemeralMessage", "viewOnceMessage", "viewOnceMessageV2", "viewOnceMessageV2Extension",
     "documentWithCaptionMessage", "editedMessage", "groupMentionedMessage"],
)  # fmt: skip
def test_what_lies_in_a_wrapper_is_read(wrapper):
    inner = Message(imageMessage=e2e.ImageMessage(caption="@Andy what is this"))

    assert made(wa.heard(wa.wrapped(inner, wrapper))).text == "@Andy what is this"


def test_wrappers_in_wrappers_are_opened_but_not_for_ever():
    message = wa.wrapped(wa.wrapped(Message(conversation="deep"), "viewOnceMessage"), "ephemeralMessage")
    assert made(wa.heard(message)).text == "deep"

    for _ in range(20):
        message = wa.wrapped(message, "ephemeralMessage")
    assert dropped(wa.heard(message)) == "nothing to read"


@pytest.mark.parametrize(
    ("field", "part", "kind"),
    [
        ("imageMessage", e2e.ImageMessage(caption="c"), "image"),
        ("videoMessage", e2e.VideoMessage(caption="c"), "video"),
        ("documentMessage", e2e.DocumentMessage(caption="c", fileName="a.pdf"), "document"),
    ],
)
def test_a_caption_is_the_text_and_the_file_can_be_fetched(field, part, kind):
    part.mediaKey, part.directPath, part.fileLength, part.mimetype = b"k" * 32, "/v/t1", 1234, "x/y"

    found = made(wa.heard(Message(**{field: part})))

    assert found.text == "c"
    assert (found.media.kind, found.media.size, found.media.mime) == (kind, 1234, "x/y")
    again = Message.FromString(b64decode(found.media.ref))
    assert getattr(again, field).mediaKey == b"k" * 32


def test_a_photo_without_a_caption_is_a_message():
    part = e2e.ImageMessage(mediaKey=b"k", directPath="/v", mimetype="image/jpeg")

    found = made(wa.heard(Message(imageMessage=part)))

    assert (found.text, found.media.kind) == ("", "image")


def test_a_voice_note_tells_its_seconds_and_other_audio_is_told_apart():
    part = e2e.AudioMessage(mediaKey=b"k", directPath="/v", PTT=True, seconds=12, mimetype="audio/ogg")
    assert made(wa.heard(Message(audioMessage=part))).media.kind == "voice note"
    assert made(wa.heard(Message(audioMessage=part))).media.seconds == 12

    part.PTT = False
    assert made(wa.heard(Message(audioMessage=part))).media.kind == "audio"


def test_a_video_note_is_fetched_as_the_video_it_is():
    part = e2e.VideoMessage(mediaKey=b"k", directPath="/v")
    media = made(wa.heard(Message(ptvMessage=part))).media

    assert Message.FromString(b64decode(media.ref)).videoMessage.mediaKey == b"k"


def test_polls_contacts_and_places_are_words():
    poll = e2e.PollCreationMessage(name="Pizza?", options=[e2e.PollCreationMessage.Option(optionName="yes")])
    contact = e2e.ContactMessage(
        displayName="Bob", vcard="BEGIN:VCARD\nitem1.TEL;waid=49:+49 30 1\nTEL:+49 30 2\nEND:VCARD"
    )
    place = e2e.LocationMessage(degreesLatitude=1.5, degreesLongitude=2.5, name="Park")

    assert made(wa.heard(Message(pollCreationMessageV3=poll))).text == "[poll] Pizza?\n- yes"
    assert made(wa.heard(Message(contactMessage=contact))).text == "[contact] Bob: +49 30 1, +49 30 2"
    assert made(wa.heard(Message(locationMessage=place))).text == "[place] 1.500000, 2.500000 Park"


def test_an_address_of_the_new_kind_becomes_a_phone_number_everywhere():
    message = wa.text(
        f"ask @{wa.JANE_LID} please",
        stanzaID="3BBB",
        participant=f"{wa.JANE_LID}@lid",
        quotedMessage=Message(conversation="earlier"),
        mentionedJID=[f"{wa.JANE_LID}@lid"],
    )

    found = made(wa.heard(message, sender=wa.lid(wa.JANE_LID), name=""))

    assert found.sender == f"{wa.JANE}@s.whatsapp.net"
    assert found.sender_name == "Jane"
    assert found.mentions == (f"{wa.JANE}@s.whatsapp.net",)
    assert found.text == "ask @Jane please"
    assert found.quote.author == "Jane"
    assert found.sender_alias == f"{wa.JANE_LID}@lid", "by which the host knows that both are one person"
    assert wa.JANE_LID not in protocol.json_of(replace(found, sender_alias=None))


def test_the_event_itself_tells_the_number_of_a_chat_between_two():
    theirs = wa.heard(
        "hi", chat=wa.lid(wa.JANE_LID), sender=wa.lid(wa.JANE_LID), sender_alt=wa.jid(wa.JANE, device=3)
    )
    mine = wa.heard(
        "hi",
        chat=wa.lid(wa.JANE_LID),
        sender=wa.lid(wa.ANDY_LID),
        recipient_alt=wa.jid(wa.JANE),
        is_from_me=True,
    )

    for event in (theirs, mine):
        assert made(event, people=Directory()).chat == f"{wa.JANE}@s.whatsapp.net"
    assert convert.pairs_of(theirs) == {wa.JANE_LID: wa.JANE}
    assert convert.pairs_of(mine) == {wa.JANE_LID: wa.JANE}


def test_a_number_that_nobody_knows_stays_as_it_is():
    found = made(wa.heard("hi", sender=wa.lid(wa.JANE_LID), name=""), people=Directory())

    assert (found.sender, found.sender_name) == (f"{wa.JANE_LID}@lid", wa.JANE_LID)


def test_all_people_of_an_event_are_told_to_be_looked_up():
    message = wa.text(
        "x", stanzaID="3B", participant=f"{wa.JANE_LID}@lid", mentionedJID=["7@lid", "no@where"]
    )
    event = wa.heard(message, sender=wa.lid("8"))

    assert {str(one) for one in convert.people_in(event)} == {f"{wa.JANE_LID}@lid", "7@lid", "8@lid"}


def test_a_quote_tells_its_message_its_author_and_its_words():
    message = wa.text(
        "yes!", stanzaID="3BBB", participant=f"{wa.ANDY}:2@s.whatsapp.net",
        quotedMessage=wa.wrapped(Message(conversation="Shall I?"), "ephemeralMessage"),
    )  # fmt: skip

    quote = made(wa.heard(message)).quote

    assert (quote.id, quote.is_mine, quote.text) == ("3BBB", True, "Shall I?")


def test_who_mentions_the_assistants_own_number_calls_it():
    message = wa.text(f"@{wa.ANDY_LID} what's on?", mentionedJID=[f"{wa.ANDY_LID}@lid"])

    assert (
        made(wa.heard(message), me=OwnAccount(phone=wa.ANDY, lid=wa.ANDY_LID, own_name="Andy")).text
        == "@Andy what's on?"
    )
    # On a shared number the owner is meant.
    assert made(wa.heard(message)).text == f"@+{wa.ANDY} what's on?"


@pytest.mark.parametrize(
    ("mentioned", "name", "calls"),
    [
        (f"{wa.ANDY_LID}@lid", "Andy", True),
        (f"{wa.ANDY}@s.whatsapp.net", "Andy", True),
        (f"{wa.ANDY}@s.whatsapp.net", "", False),
        (f"{wa.JANE}@s.whatsapp.net", "Andy", False),
    ],
)
def test_a_mention_of_the_account_calls_the_assistant_whose_own_it_is(mentioned, name, calls):
    message = wa.text("what do you think?", mentionedJID=[mentioned])
    me = OwnAccount(phone=wa.ANDY, lid=wa.ANDY_LID, own_name=name)

    found = made(wa.heard(message), people=Directory(), me=me)

    assert found.calls_me is calls


def test_a_mention_that_begins_like_another_number_is_left():
    message = wa.text("@123 and @1234", mentionedJID=["123@s.whatsapp.net"])

    assert made(wa.heard(message)).text == "@+123 and @1234"


def test_an_invitation_to_an_event_keeps_its_time_and_place():
    part = e2e.EventMessage(
        name="Picnic",
        description="Bring cake",
        startTime=1_780_000_000,
        endTime=1_780_007_200,
        location=e2e.LocationMessage(name="Volkspark", address="Berlin"),
        joinLink="https://call.example/x",
    )

    assert made(wa.heard(Message(eventMessage=part))).text == (
        "[event] Picnic\n2026-05-28T20:26Z to 2026-05-28T22:26Z\nat Volkspark, Berlin\n"
        "https://call.example/x\nBring cake"
    )
    off = e2e.EventMessage(name="Picnic", isCanceled=True, startTime=10**18)
    assert made(wa.heard(Message(eventMessage=off))).text == f"[event called off] Picnic\n{10**18}"


def test_a_sticker_is_a_file_that_says_what_it_means():
    part = e2e.StickerMessage(mediaKey=b"k", directPath="/v", mimetype="image/webp", fileLength=7)
    found = made(wa.heard(Message(stickerMessage=part)))
    assert (found.text, found.media.kind, found.media.mime) == ("", "sticker", "image/webp")

    part.emojis = "😂"
    assert made(wa.heard(Message(stickerMessage=part))).text == "[sticker: 😂]"
    assert made(wa.heard(Message(stickerMessage=e2e.StickerMessage()))).text == "[sticker]"


def a_vote(poll: str = "3BBB") -> MessageEvent:
    return wa.heard(
        Message(pollUpdateMessage=e2e.PollUpdateMessage(pollCreationMessageKey=MessageKey(ID=poll)))
    )


@pytest.mark.parametrize(
    ("vote", "text", "quoted"),
    [
        (convert.Vote(question="When?", chosen=("Fri", "Sun")), "[voted for Fri, Sun]", "[poll] When?"),
        (convert.Vote(question="When?", chosen=()), "[took a vote back]", "[poll] When?"),
        (convert.Vote(), "[voted in a poll; what for cannot be read]", ""),
        (None, "[voted in a poll; what for cannot be read]", ""),
    ],
)  # fmt: skip
def test_a_vote_is_told_with_its_poll(vote, text, quoted):
    found = convert.convert(a_vote(), people=PEOPLE, me=ME, vote=vote)

    assert isinstance(found, BridgeMessage)
    assert (found.text, found.ignored) == (text, "poll vote")
    assert (found.quote.id, found.quote.text) == ("3BBB", quoted)


def test_a_reaction_is_told_with_the_reason_why_nobody_answers():
    part = e2e.ReactionMessage(key=MessageKey(ID="3BBB", fromMe=True), text="👍")

    found = made(wa.heard(Message(reactionMessage=part)))

    assert (found.text, found.ignored, found.quote.id) == ("[reacted 👍]", "reaction", "3BBB")
    assert found.reaction == "👍"
    part.text = ""
    assert dropped(wa.heard(Message(reactionMessage=part))) == "reaction taken back"


@pytest.mark.parametrize(
    ("is_reacting_to_own_message", "is_from_me", "is_andys"),
    [(False, False, True), (True, False, False), (True, True, True), (False, True, False)],
)
def test_a_reaction_in_a_chat_between_two_is_to_the_message_of_the_one_or_the_other(
    is_reacting_to_own_message: bool, is_from_me: bool, is_andys: bool
) -> None:
    key = MessageKey(ID="3BBB", fromMe=is_reacting_to_own_message, remoteJID=f"{wa.ANDY}@s.whatsapp.net")
    part = e2e.ReactionMessage(key=key, text="👍")
    event = wa.heard(Message(reactionMessage=part), chat=wa.jid(wa.JANE), is_from_me=is_from_me)

    assert made(event).quote.is_mine is is_andys


def test_an_edit_names_its_message_and_the_new_text():
    found = made(wa.heard(wa.edit("3OLD", Message(conversation="new words")), message_id="3NEW"))

    assert (found.id, found.edits, found.text) == ("3NEW", "3OLD", "new words")
    in_wrapper = wa.wrapped(wa.edit("3OLD", wa.text("newer")), "editedMessage")
    assert made(wa.heard(in_wrapper)).edits == "3OLD"


def test_a_deletion_names_its_message():
    found = made(wa.heard(wa.deletion("3OLD")))

    assert (found.deletes, found.text) == ("3OLD", "")


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (wa.heard("x", chat=wa.jid("status", "broadcast")), "status broadcast"),
        (
            wa.heard("x", chat=wa.jid("1", "newsletter"), sender=wa.jid("1", "newsletter")),
            "not a chat: newsletter",
        ),
        (wa.heard(Message()), "nothing to read"),
        (wa.heard("x", message_id=""), "no id"),
        (wa.heard(Message(protocolMessage=e2e.ProtocolMessage(type=5))), "protocol message"),
        (wa.heard(Message(pollUpdateMessage=e2e.PollUpdateMessage())), "a vote in no poll"),
        (
            wa.heard(Message(senderKeyDistributionMessage=e2e.SenderKeyDistributionMessage())),
            "nothing to read",
        ),
        (wa.heard("x", sender=wa.jid("../../etc", "s.whatsapp.net")), "not a chat: g.us"),
        (MessageEvent(), "not a chat: "),
    ],
)
def test_what_is_no_message_is_dropped_and_says_why(event, reason):
    assert dropped(event) == reason


def test_a_text_longer_than_the_store_takes_is_cut_and_says_so():
    found = made(wa.heard("x" * 100_000))

    assert len(found.text) < 61_000
    assert found.text.endswith("… [cut]")


# What nothing here reads


@pytest.mark.parametrize(("field", "part", "text"), [
    ("orderMessage", e2e.OrderMessage(orderTitle="3 cakes", message="please"), "[order] please, 3 cakes"),
    ("productMessage", e2e.ProductMessage(product=e2e.ProductMessage.ProductSnapshot(title="A cake")),
     "[product] A cake"),
    ("buttonsMessage", e2e.ButtonsMessage(contentText="Tea?"), "[buttons] Tea?"),
    ("listMessage", e2e.ListMessage(title="Menu", description="Choose"), "[list] Menu, Choose"),
    ("scheduledCallCreationMessage", e2e.ScheduledCallCreationMessage(title="Sync"),
     "[scheduled call creation] Sync"),
    ("requestPaymentMessage", e2e.RequestPaymentMessage(amount1000=5),
     "[something that cannot be read here: request payment]"),
    ("pollResultSnapshotMessage", e2e.PollResultSnapshotMessage(name="When?"),
     "[poll result snapshot] When?"),
    ("interactiveMessage", e2e.InteractiveMessage(), "[something that cannot be read here: interactive]"),
    ("imageMessage", e2e.ImageMessage(viewOnce=True), "[something that cannot be read here: image]"),
])  # fmt: skip
def test_what_cannot_be_read_leaves_a_line_with_its_texts_that_asks_for_nothing(field, part, text):
    found = made(wa.heard(Message(**{field: part})))
    assert (found.text, found.ignored) == (text, convert.UNKNOWN_KIND)


def test_every_kind_of_message_is_a_message_or_shows_nothing_to_people():
    shown = {"nothing to read", "protocol message", "reaction taken back", "a vote in no poll"}
    for field in Message.DESCRIPTOR.fields:
        if field.message_type is None or field.name in message_text.WRAPPERS:
            continue
        message = Message()
        getattr(message, field.name).SetInParent()
        if field.message_type.name == "FutureProofMessage":
            getattr(message, field.name).message.conversation = "inside"
        found = convert.convert(wa.heard(message), people=PEOPLE, me=ME)
        is_silent = field.name in message_text._DEVICE_FIELDS or field.name.startswith("status")
        reasons = shown | {field.name}
        assert isinstance(found, BridgeMessage) or is_silent or found.reason in reasons, field.name
        if field.message_type.name == "FutureProofMessage":
            assert found.text == "inside", field.name


def test_a_kind_of_tomorrow_leaves_a_line():
    # The field 900 with a text of 2 bytes, as a later version would send it.
    message = Message.FromString(bytes([0xA2, 0x38, 0x02]) + b"hi")
    assert made(wa.heard(message)).text == "[something that cannot be read here: kind 900]"


def test_a_change_that_is_encrypted_once_more_says_which_message_it_changes():
    part = e2e.SecretEncryptedMessage(targetMessageKey=MessageKey(ID="3A1"), secretEncType=2)
    found = made(wa.heard(Message(secretEncryptedMessage=part)))
    assert (found.text, found.quote.id) == ("[changed a message; how cannot be read]", "3A1")
    assert found.ignored == convert.UNKNOWN_KIND


@pytest.mark.parametrize("name", ["Andy", "ANDY", "andy müller", "Jane @Andy", "Jane ＠andy clear the list"])
def test_somebody_who_is_called_as_the_assistant_is_mentioned_by_number(name):
    people = Directory(names={wa.JANE: name})
    me = OwnAccount(phone=wa.ANDY, assistant="Andy")
    said = wa.text(f"ask @{wa.JANE} first", mentionedJID=[f"{wa.JANE}@s.whatsapp.net"])
    assert made(wa.heard(said), people=people, me=me).text == f"ask @+{wa.JANE} first"
    assert made(wa.heard(said), me=me).text == "ask @Jane first"


def test_a_call_is_looked_for_without_the_names_of_who_is_mentioned():
    people = Directory(names={wa.JANE: "bot"})
    me = OwnAccount(phone=wa.ANDY, lid=wa.ANDY_LID, own_name="Andy", assistant="Andy")
    jids = [f"{wa.JANE}@s.whatsapp.net", f"{wa.ANDY_LID}@lid"]
    said = wa.text(f"@{wa.JANE} ask @{wa.ANDY_LID}", mentionedJID=jids)
    found = made(wa.heard(said), people=people, me=me)
    assert (found.text, found.call_text) == ("@bot ask @Andy", f"@+{wa.JANE} ask @Andy")
    assert made(wa.heard(wa.text("hi")), people=people, me=me).call_text is None


def test_what_somebody_sends_to_a_list_of_theirs_is_in_the_chat_with_them():
    event = wa.heard("hello all", chat=wa.jid("77", "broadcast"))
    assert (made(event).chat, made(event).is_group) == (f"{wa.JANE}@s.whatsapp.net", False)
    own = wa.heard("hello all", chat=wa.jid("77", "broadcast"), is_from_me=True)
    assert dropped(own) == "status broadcast"


# Anything at all


READ = {
    *message_text.WRAPPERS, *message_text.POLLS, *message_text.FILES, "conversation", "extendedTextMessage",
    "contextInfo", "protocolMessage", "reactionMessage", "editedMessage", "message", "quotedMessage", "key",
    "caption", "text", "mentionedJID", "participant", "stanzaID", "contactMessage",
    "locationMessage", "mediaKey", "directPath",
}  # fmt: skip


def _some(descriptor):
    """A field, rather one that is read."""
    everything = list(descriptor.fields)
    read = [one for one in everything if one.name in READ]
    return st.sampled_from(read * 4 + everything)


def _fields(descriptor, depth):
    """Random values of a protobuf's fields: a few of them, nested a few deep."""
    return st.lists(_some(descriptor), max_size=3, unique_by=lambda one: one.name).flatmap(
        lambda fields: st.fixed_dictionaries({one.name: _value(one, depth) for one in fields})
    )


def _value(one, depth):
    is_many = getattr(one, "is_repeated", None)
    if is_many is None:
        is_many = one.label == FieldDescriptor.LABEL_REPEATED
    plain = _single(one, depth)
    return st.lists(plain, max_size=2) if is_many else plain


TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["1@lid", "2@s.whatsapp.net", "@", "a@b@c", "x@g.us", "\x00", "../../x@lid", "9" * 200 + "@lid"]
    ),
)
SIMPLE = {
    FieldDescriptor.CPPTYPE_STRING: TEXTS,
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
}


def _single(one, depth):
    if one.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _fields(one.message_type, depth - 1) if depth > 0 else st.just({})
    if one.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in one.enum_type.values])
    if one.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=20)
    return SIMPLE[one.cpp_type]


JIDS = st.builds(
    JID,
    User=st.one_of(TEXTS, st.sampled_from([wa.JANE, wa.JANE_LID, wa.ANDY, wa.FAMILY, "status"])),
    Server=st.one_of(
        TEXTS, st.sampled_from(["s.whatsapp.net", "lid", "g.us", "broadcast", "newsletter", "hosted"])
    ),
)
EVENTS = st.builds(
    MessageEvent,
    Info=st.builds(
        MessageInfo,
        MessageSource=st.builds(
            MessageSource, Chat=JIDS, Sender=JIDS, SenderAlt=JIDS, RecipientAlt=JIDS, IsFromMe=st.booleans()
        ),
        ID=TEXTS,
        Pushname=TEXTS,
        Timestamp=st.integers(-(2**63), 2**63 - 1),
    ),
    Message=_fields(Message.DESCRIPTOR, 4).map(lambda fields: Message(**fields)),
)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(event=EVENTS)
def test_whatever_comes_in_is_a_message_or_a_reason_and_passes_to_the_host_as_it_is(event):
    convert.pairs_of(event)
    convert.people_in(event)

    found = convert.convert(
        event, people=PEOPLE, me=OwnAccount(phone=wa.ANDY, lid=wa.ANDY_LID, own_name="Andy")
    )

    if isinstance(found, BridgeMessage):
        told = Delivered(n=1, message=found)
        assert from_bridge(line_of(told)) == told
        assert line_of(told).count(b"\n") == 1
        assert len(line_of(told)) < protocol.MAX_LINE_BYTES
        for address in (found.chat, found.sender, *found.mentions):
            assert str(addresses.parse(address)) == address


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_happen_to_be_a_message_are_no_danger(body):
    try:
        message = Message.FromString(body)
    except Exception:  # noqa: BLE001 - the library's own refusal
        return
    convert.convert(wa.heard(message), people=PEOPLE, me=ME)


def test_a_name_that_holds_its_own_number_is_put_in_once_for_each_place():
    """A sender's own name was put into itself again for each mention of theirs: gigabytes for a dozen."""
    people = Directory(phones={}, names={wa.JANE: f"@{wa.JANE}," * 5})
    message = wa.text(f"@{wa.JANE} and @{wa.JANE}", mentionedJID=[f"{wa.JANE}@s.whatsapp.net"] * 300)

    found = made(wa.heard(message), people=people)

    assert found.text == f"@{f'@{wa.JANE},' * 5} and @{f'@{wa.JANE},' * 5}"
    assert found.mentions == (f"{wa.JANE}@s.whatsapp.net",)


def test_more_people_than_a_group_has_are_not_mentioned():
    several = [f"{number}@s.whatsapp.net" for number in range(49100, 49100 + 3 * convert.MAX_MENTIONS)]
    found = made(wa.heard(wa.text("hi", mentionedJID=several)))
    assert len(found.mentions) == convert.MAX_MENTIONS
