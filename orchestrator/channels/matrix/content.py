"""Write messages as the content of Matrix events. Pure.

The text is sent twice: plain, and as HTML rendered from its Markdown, in which HTML tags of the text are only
text.
"""

from __future__ import annotations

import html
import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as percent

from orchestrator.domain.polls import Poll
from orchestrator.domain.values import ChatMember

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_CONTENT_BYTES = 44_000
"""Bytes of a content: an event may have 64 KiB with its keys, its signature and, encrypted, a third more."""
MESSAGE_ID_KEY = "andy.message_id"
"""The content key with the host's id of a message, by which it is found in its room."""
POLL, TEXT_KEY = "org.matrix.msc3381.poll", "org.matrix.msc1767.text"
"""The prefix of polls' names, and the key of a text, from before their acceptance, which clients use."""
MSGTYPES = {"image": "m.image", "audio": "m.audio", "video": "m.video"}


@cache
def _markdown() -> MarkdownIt:
    """Return the parser of Markdown, made once: its library loads slowly."""
    from markdown_it import MarkdownIt

    # HTML in the text is only text, each line break is shown, and web addresses are left to the clients.
    options = {"html": False, "breaks": True, "linkify": False}
    # Without `reference`, which would leave out lines such as `[10:30]: Anna`.
    parser = MarkdownIt("commonmark", options).enable(["table", "strikethrough"]).disable("reference")
    parser.add_render_rule("image", _image_as_text)
    return parser


def _image_as_text(_: object, tokens: Sequence[Token], index: int, *__: object) -> str:
    """Return the HTML for an image: its words and its address, as clients show only images of Matrix."""
    image = tokens[index]
    return html.escape(f"{image.content} ({image.attrs.get('src', '')})".strip())


def text_content(text: str, *, mention: ChatMember | None = None) -> dict[str, Any]:
    """Return the content of a message whose `text` is Markdown: the text itself, and its rendered HTML.

    The HTML is left out if it shows no more than the text, or would make the event too large. `mention` is
    the person whom the message notifies: their name, which is put before a text without it, becomes a link.
    No link is put into another link or into code.
    """
    plain = _with_name(text, mention)
    # Empty `m.mentions` say that the message notifies nobody.
    content: dict[str, Any] = {"msgtype": "m.text", "body": plain, "m.mentions": {}}
    markdown = _markdown()
    tokens = markdown.parse(plain)
    for token in tokens:
        if token.type == "fence" and len(token.info.split()) > 1:
            # Several words behind the fence are no language, but code.
            token.info, token.content = "", f"{token.info.strip()}\n{token.content}"
    if mention is not None:
        content["m.mentions"] = {"user_ids": [mention.jid]}
        _link_name(tokens, mention)
    rendered = markdown.renderer.render(tokens, markdown.options, {}).strip()
    if rendered != f"<p>{html.escape(plain)}</p>":
        formatted = content | {"format": "org.matrix.custom.html", "formatted_body": rendered}
        if len(json.dumps(formatted, ensure_ascii=False).encode()) <= MAX_CONTENT_BYTES:
            return formatted
    return content


def _link_name(tokens: Sequence[Token], mention: ChatMember) -> None:
    """Make the first mention of a person's name in the parsed Markdown a link to the person.

    Only ordinary words count: in a web address or in another link's words, the link would break the HTML.
    """
    from markdown_it.token import Token

    name = mention.name or mention.jid
    link = f'<a href="https://matrix.to/#/{percent(mention.jid)}">{html.escape(name)}</a>'
    for children in (token.children for token in tokens if token.children):
        open_links = 0
        for place, token in enumerate(children):
            if token.type in ("link_open", "link_close"):
                open_links += token.nesting  # 1 or -1
            elif token.type == "text" and not open_links and (found := _found_name(name, token.content)):
                before, after = token.content[: found.start()], token.content[found.end() :]
                parts = (("text", before), ("html_inline", link), ("text", after))
                children[place : place + 1] = [Token(kind, "", 0, content=part) for kind, part in parts]
                return


def _with_name(text: str, mention: ChatMember | None) -> str:
    """Return a text with the name of the mentioned person put before it: `Ann: hello`.

    A text that contains the name already is returned unchanged, and so is any text without a `mention`.
    """
    name = (mention.name or mention.jid) if mention else ""
    return text if not name or _found_name(name, text) else f"{name}: {text}"


def _found_name(name: str, text: str) -> re.Match[str] | None:
    """Return the first place of a name in a text, but not in a longer word; None if there is none.

    Letters of other scripts may follow, as Korean puts particles behind a name.
    """
    return re.search(rf"(?<!\w){re.escape(name)}(?![A-Za-z0-9_])", text)


def file_content(*, caption: str, name: str, mime: str, size: int, source: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a message with an uploaded file.

    Args:
        caption: the text under the file; empty for none.
        name: the name of the file.
        mime: its MIME type.
        size: its size in bytes.
        source: where it was uploaded: `{"url": …}`, or `{"file": {…}}` with its keys in an encrypted room.
    """
    content = text_content(caption) if caption else {"body": name, "m.mentions": {}}
    kind = MSGTYPES.get(mime.partition("/")[0], "m.file")
    return content | {"msgtype": kind, "filename": name, "info": {"mimetype": mime, "size": size}, **source}


def poll_content(poll: Poll, text: str) -> dict[str, Any]:
    """Return the content of a poll (MSC3381), with the `text` for clients that show no polls."""
    answers = [{"id": str(index), TEXT_KEY: option} for index, option in enumerate(poll.options)]
    start = {
        "question": {"msgtype": "m.text", "body": poll.question, TEXT_KEY: poll.question},
        "kind": f"{POLL}.disclosed",  # the votes are shown while the poll is open
        "max_selections": len(poll.options) if poll.is_multiple else 1,
        "answers": answers,
    }
    return {f"{POLL}.start": start, TEXT_KEY: text, "m.mentions": {}}


def poll_end_content(event_id: str) -> dict[str, Any]:
    """Return the content of the event that closes the poll in the event `event_id`."""
    relation = {"rel_type": "m.reference", "event_id": event_id}
    return {f"{POLL}.end": {}, TEXT_KEY: "The question is closed.", "m.relates_to": relation}


def with_relations(content: dict[str, Any], *, answered_event: str, thread_root: str) -> dict[str, Any]:
    """Return the content of an event as an answer to another event, in a thread, or both.

    `answered_event` is the id of the answered event, `thread_root` that of the first event of the thread.
    Each is empty for none.
    """
    relation: dict[str, Any] = {}
    if thread_root:
        # Clients without threads show it as an answer to the first message of the thread. `is_falling_back`
        # says to the others that this answer is only for those clients.
        relation = {"rel_type": "m.thread", "event_id": thread_root, "is_falling_back": not answered_event}
    if answered_event or thread_root:
        relation["m.in_reply_to"] = {"event_id": answered_event or thread_root}
    return content | {"m.relates_to": relation} if relation else content


def reaction_content(event_id: str, sign: str) -> dict[str, Any]:
    """Return the content of a reaction with the emoji `sign` to the event `event_id`."""
    return {"m.relates_to": {"rel_type": "m.annotation", "event_id": event_id, "key": sign}}
