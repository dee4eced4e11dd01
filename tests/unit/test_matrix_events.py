"""Events of rooms as messages, whatever their senders put into them; and messages as events."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("markdown_it")

from orchestrator.channels.matrix import content, description, events
from orchestrator.domain.values import ChatJid, ChatMember

HEAD = {"event_id": "$e", "sender": "@jane:x", "origin_server_ts": 5}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def message(kind="m.room.message", **fields):
    return events.read_event({**HEAD, "type": kind, "content": fields})


def test_a_text_is_a_message_of_its_sender():
    read = message(msgtype="m.text", body="hello")
    assert read == events.RoomMessage(event_id="$e", sender="@jane:x", sent_ms=5, text="hello")
    assert message(msgtype="m.emote", body="waves").text == "* waves"


def test_quoted_words_of_older_clients_are_left_out_of_an_answer_alone():
    body = "> <@a:b> first\n> second\n\nmine\n> not quoted"
    answer = {"m.relates_to": {"m.in_reply_to": {"event_id": "$q"}}}
    assert message(body=body, **answer).text == "mine\n> not quoted"
    assert message(body=body, **answer).answers == "$q"
    assert message(body=body).text == body
    assert message(body="> * <@a:b> waves\n\nmine", **answer).text == "mine"
    for own_quote in ("> the 3rd\n\nthat day", "> <b>\n> x\n\nthat day"):
        assert message(body=own_quote, **answer).text == own_quote


def test_an_answer_that_only_shows_a_thread_to_older_clients_answers_nobody():
    relation = {"rel_type": "m.thread", "event_id": "$t", "m.in_reply_to": {"event_id": "$last"}}
    read = message(body="x", **{"m.relates_to": {**relation, "is_falling_back": True}})
    assert (read.thread, read.answers) == ("$t", "")
    assert message(body="x", **{"m.relates_to": relation}).answers == "$last"


@pytest.mark.parametrize("redaction", [{"redacts": "$r"}, {"content": {"redacts": "$r"}}])
def test_a_redaction_names_its_event_in_either_of_two_places(redaction):
    read = events.read_event({**HEAD, "type": "m.room.redaction", "content": {}, **redaction})
    assert read.redacts == "$r"


def test_a_file_has_a_caption_only_where_its_name_is_told_apart():
    picture = {"msgtype": "m.image", "url": "mxc://x/abc", "info": {"mimetype": "image/png", "size": 3}}
    assert message(body="cat.png", **picture).text == ""
    read = message(body="my cat", filename="cat.png", **picture)
    assert (read.text, read.file.name, read.file.kind, read.file.size) == ("my cat", "cat.png", "image", 3)
    voice = {"msgtype": "m.audio", "url": "mxc://x/abc", events.VOICE: {}, "info": {"duration": 2500}}
    assert (message(body="Voice", **voice).file.kind, message(body="Voice", **voice).file.seconds) == (
        "voice note",
        2,
    )


@pytest.mark.parametrize("uri", ["http://x/y", "mxc://x", "mxc://x/../../y", "mxc://x/a?b=c", "", None, 3])
def test_an_address_that_is_none_of_the_media_store_is_no_file(uri):
    assert message(msgtype="m.file", body="x", url=uri).file is None


def test_somebody_comes_only_when_they_were_not_there():
    join = {"type": "m.room.member", "state_key": "@andy:x", "content": {"membership": "join"}}
    assert events.is_join_of(join, "@andy:x")
    renamed = join | {"unsigned": {"prev_content": {"membership": "join"}}}
    assert not events.is_join_of(renamed, "@andy:x")
    assert not events.is_join_of(join, "@jane:x")


@given(
    st.dictionaries(st.sampled_from(["type", "content", "redacts", "state_key", "origin_server_ts"]), JSON)
)
def test_no_event_of_any_shape_raises(fields):
    events.read_event({**HEAD, **fields})


KEYS = ["body", "msgtype", "url", "file", "filename", "info", "m.relates_to", "m.new_content", "m.mentions"]
RELATIONS = st.fixed_dictionaries(
    {"rel_type": st.sampled_from(["m.replace", "m.thread", "m.annotation"]), "event_id": JSON, "key": JSON}
)


@given(
    st.sampled_from(["m.room.message", "m.reaction", "m.room.redaction", "m.room.encrypted"]),
    st.dictionaries(st.sampled_from(KEYS), JSON | RELATIONS),
)
def test_no_content_of_any_shape_raises(kind, fields):
    events.read_event({**HEAD, "type": kind, "content": fields})


def of_kind(kind, **content):
    return events.read_event({**HEAD, "type": kind, "content": content})


def test_what_a_program_says_is_read_and_asks_for_nothing():
    read = message(msgtype="m.notice", body="@Andy the build is green")
    assert (read.text, read.ignored) == ("@Andy the build is green", events.NOTICE)
    assert message(msgtype="m.text", body="x").ignored == ""


def test_a_change_of_what_a_program_says_asks_for_nothing_either():
    new = {"msgtype": "m.notice", "body": "@Andy 2 of 3 are built"}
    edit = {"m.new_content": new, "m.relates_to": {"rel_type": "m.replace", "event_id": "$0"}}
    read = message(msgtype="m.notice", body="* @Andy 2 of 3", **edit)
    assert (read.edits, read.text, read.ignored) == ("$0", "@Andy 2 of 3 are built", events.NOTICE)
    for shown in ({"body": "@Andy 2 of 3"}, {**new, "msgtype": "m.text"}, {**new, "msgtype": ["m.notice"]}):
        edit["m.new_content"] = shown
        assert message(msgtype="m.notice", body="* @Andy 2 of 3", **edit).ignored == events.NOTICE
    edit["m.new_content"] = {**new, "msgtype": "m.text"}
    assert message(msgtype="m.text", body="* x", **edit).ignored == ""


PILL = '<a href="https://matrix.to/#/@andy:x">Andy B</a>: add figs'


def test_a_link_to_an_account_is_a_mention_where_the_client_names_none_itself():
    read = message(body="Andy B: add figs", formatted_body=PILL, format="org.matrix.custom.html")
    assert (read.mentions, read.linked_accounts) == ({"@andy:x"}, (("@andy:x", "Andy B"),))
    escaped = PILL.replace("@andy:x", "%40andy%3Ax")
    assert message(body="x", formatted_body=escaped).mentions == {"@andy:x"}
    assert message(body="x", formatted_body=PILL, **{"m.mentions": {}}).mentions == frozenset()
    quoted = f"<mx-reply><blockquote>{PILL}</blockquote></mx-reply>no"
    assert message(body="no", formatted_body=quoted).mentions == frozenset()


@pytest.mark.parametrize(("text", "shown"), [
    ("Andy B: add figs", "@Andy add figs"), ("andy b add figs", "@Andy add figs"),
    ("Andy, add figs", "@Andy add figs"), ("@andy:x add figs", "@Andy add figs"),
    ("Andy", "@Andy"), ("Andys figs", "Andys figs"), ("figs, Andy", "figs, Andy"),
])  # fmt: skip
def test_a_mention_at_the_begin_of_a_text_is_the_call_that_people_write(text, shown):
    assert events.with_call(text, {"Andy B", "andy", "@andy:x", ""}, call_text="@Andy") == shown


def test_a_sticker_is_its_words_and_its_picture():
    read = of_kind("m.sticker", body="a cat", url="mxc://x/abc", info={"mimetype": "image/png"})
    assert (read.text, read.file.kind) == ("[sticker: a cat]", "sticker")
    assert of_kind("m.sticker").text == "[sticker]"


def test_a_place_has_its_coordinates():
    read = message(msgtype="m.location", body="Location was shared", geo_uri="geo:52.5200,-13.4050;u=35")
    assert read.text == "[place] 52.5200, -13.4050 Location was shared"
    assert message(msgtype="m.location", body="Here", geo_uri="geo:x,y").text == "Here"


MSC = "org.matrix.msc3381.poll"
WORDS = "org.matrix.msc1767.text"
OLD_POLL = {f"{MSC}.start": {"question": {WORDS: "Tea?", "body": "Tea?"}, "kind": f"{MSC}.disclosed",
            "max_selections": 1, "answers": [{"id": "1", WORDS: "Yes"}, {"id": "2", WORDS: "No"}]},
            WORDS: "Tea?"}  # fmt: skip
NEW_POLL = {"m.poll": {"question": {"m.text": [{"body": "Tea?"}]}, "kind": "m.undisclosed", "answers": [
            {"m.id": "1", "m.text": [{"body": "Yes"}]}, {"m.id": "2", "m.text": [{"body": "No"}]}]},
            "m.text": [{"body": "Tea?"}]}  # fmt: skip
HTML_POLL = {"m.poll": {"question": {"m.text": [{"mimetype": "text/html", "body": "<b>Tea?</b>"},
            {"mimetype": "text/plain", "body": "Tea?"}]}, "answers": [
            {"m.id": "1", "m.text": [{"mimetype": "text/html", "body": "<i>Yes</i>"}, {"body": "Yes"}]},
            {"m.id": "2", "m.text": [7, {"body": "No"}]}]}}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "content"), [(f"{MSC}.start", OLD_POLL), ("m.poll.start", NEW_POLL), ("m.poll.start", HTML_POLL)]
)
def test_a_poll_is_its_question_and_its_options(kind, content):
    assert of_kind(kind, **content).text == "[poll] Tea?\n- Yes\n- No"


def test_a_vote_belongs_to_its_poll_and_asks_for_nothing():
    relation = {"m.relates_to": {"rel_type": "m.reference", "event_id": "$poll"}}
    read = of_kind(f"{MSC}.response", **relation, **{f"{MSC}.response": {"answers": ["1"]}})
    assert (read.text, read.answers, read.ignored) == ("[voted in a poll]", "$poll", "poll vote")
    assert of_kind("m.poll.end", **relation, **{"m.poll.end": {}}).text == "[closed a poll]"


def test_what_nobody_here_knows_leaves_a_row_that_asks_for_nothing():
    read = of_kind("com.example.order", total=3)
    assert (read.text, read.ignored) == (
        "[something that cannot be read here: com.example.order]", events.UNKNOWN_KIND
    )  # fmt: skip
    assert of_kind("com.example.note", **{"m.text": [{"body": "words"}]}).text == "words"
    assert message(msgtype="com.example.card").ignored == events.UNKNOWN_KIND
    assert of_kind("m.call.candidates", candidates=[]) is None
    gone = {**HEAD, "type": "m.room.message", "content": {}, "unsigned": {"redacted_because": {}}}
    assert events.read_event(gone) is None


def test_html_of_an_answer_is_only_text():
    body = content.text_content("<script>x</script> **b** [l](javascript:x) ![i](http://t/p.png)")
    assert "<script>" not in body["formatted_body"]
    assert "javascript:" not in body["formatted_body"].replace("[l](javascript:x)", "")
    assert "<strong>b</strong>" in body["formatted_body"]


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("**At**\n\n[10:30]: Anna", "<p><strong>At</strong></p>\n<p>[10:30]: Anna</p>"),
        ("![a <b>](http://t/p.png?a=1&b)", "<p>a &lt;b&gt; (http://t/p.png?a=1&amp;b)</p>"),
        ("[![a](http://t/p.png)](http://t)", '<p><a href="http://t">a (http://t/p.png)</a></p>'),
        ("![](http://t/p.png) *x*", "<p>(http://t/p.png) <em>x</em></p>"),
        ("```ls -la\npwd\n```", "<pre><code>ls -la\npwd\n</code></pre>"),
    ],
)
def test_nothing_of_a_text_is_missing_where_it_is_shown_with_marks(text, rendered):
    assert content.text_content(text)["formatted_body"] == rendered


def test_a_name_with_marks_in_it_cannot_leave_its_link():
    body = content.text_content("hi", mention=ChatMember(jid="@j:x", name='"><img src=x>'))
    assert "<img" not in body["formatted_body"]
    assert body["m.mentions"] == {"user_ids": ["@j:x"]}


@pytest.mark.parametrize(
    ("text", "name", "rendered"),
    [
        (
            "See [x](https://x.org/Ann) Ann",
            "Ann",
            '<p>See <a href="https://x.org/Ann">x</a> <a href="https://matrix.to/#/%40j%3Ax">Ann</a></p>',
        ),
        (
            "[Ann](https://x.org): *Ann*",
            "Ann",
            '<p><a href="https://x.org">Ann</a>: <em><a href="https://matrix.to/#/%40j%3Ax">Ann</a></em></p>',
        ),
        ("stop", "p", '<p><a href="https://matrix.to/#/%40j%3Ax">p</a>: stop</p>'),
        ("Also, Al, 8", "Al", '<p>Also, <a href="https://matrix.to/#/%40j%3Ax">Al</a>, 8</p>'),
        ("민지는 8시", "민지", '<p><a href="https://matrix.to/#/%40j%3Ax">민지</a>는 8시</p>'),
        ("R&D amp", "amp", '<p>R&amp;D <a href="https://matrix.to/#/%40j%3Ax">amp</a></p>'),
        ("hi O'Neil", "O'Neil", '<p>hi <a href="https://matrix.to/#/%40j%3Ax">O&#x27;Neil</a></p>'),
        ("`Ann`", "Ann", "<p><code>Ann</code></p>"),
    ],
)
def test_a_mention_becomes_a_link_in_words_only(text, name, rendered):
    body = content.text_content(text, mention=ChatMember(jid="@j:x", name=name))
    assert body["formatted_body"] == rendered
    assert body["m.mentions"] == {"user_ids": ["@j:x"]}


def test_plain_words_leave_without_marks_and_long_ones_fit_an_event():
    assert "formatted_body" not in content.text_content("plain words")
    for text in ("한" * description.MAX_TEXT_CHARS, "**한** " * (description.MAX_TEXT_CHARS // 6)):
        assert len(json.dumps(content.text_content(text), ensure_ascii=False).encode()) < 48_000


@pytest.mark.parametrize(("jid", "is_owned"), [
    ("matrix:!abc:server.org", True), ("matrix:!abc", True), ("matrix:!a:b:8448", True),
    ("matrix:#alias:x", False), ("matrix:", False), ("!abc:x", False), ("matrix:!a b:x", False),
    ("matrix:!a/b", False), ("matrix:!a?b", False),
])  # fmt: skip
def test_a_room_is_known_by_its_address(jid, is_owned):
    assert description.owns(ChatJid(jid)) == is_owned
