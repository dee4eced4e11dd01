"""Secrets of every known shape are taken out, wherever they stand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.redaction import BY_SHAPE, GONE, Redactor, redact

BODY = "Q7xK2mVt9LpR4sWd"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n{BODY}==\n-----END RSA PRIVATE KEY-----"
SHAPES = {
    "anthropic": f"sk-ant-api03-{BODY}",
    "openai": f"sk-proj-{BODY}",
    "stripe": f"sk_live_{BODY}",
    "github": f"ghp_{BODY}{BODY}",
    "github_oauth": f"gho_{BODY}{BODY}",
    "github_fine": f"github_pat_{BODY}_{BODY}",
    "gitlab": f"glpat-{BODY}{BODY}",
    "slack": f"xoxb-1234-{BODY}",
    "slack_app": f"xapp-1-{BODY}",
    "aws": "AKIAQ7XK2MVT9LPR4SWD",
    "google": f"AIza{BODY}{BODY}ab",
    "run_token": f"andy-{(BODY * 3)[:43]}",
    "jwt": f"eyJ{BODY}.{BODY}.{BODY}",
    "pem": PEM,
    "bearer": f"Bearer {BODY}",
    "header": "Authorization: Basic QWxhZGRpbjpvcGVu",
    "api_header": f"x-api-key: {BODY}",
    "cookie": f"Cookie: session={BODY}; theme=dark",
    "old_key": f"sk-{BODY}{BODY}",
    "letters_only": "sk-QxKmVtLpRsWdQxKmVtLpRsWd" + BODY,
    "password": f"password={BODY}",
    "password_colon": f"Password: {BODY}",
    "passwd": f"passwd = {BODY}",
    "korean": f"비밀번호: {BODY}",
    "wide_colon": f"비밀번호：{BODY}",
    "wide_equals": f"password＝{BODY}",
    "wide_token": f"api_key：{BODY}",
    "secret": f"CLIENT_SECRET={BODY}",
    "token": f"token={BODY}",
    "access_token": f'"access_token": "{BODY}"',
    "token_colon": f"token: {BODY}",
    "quoted": f"password = '{BODY} {BODY}'",
    "nested_json": json.dumps(json.dumps({"password": f"{BODY} {BODY}"})),
    "url": f"https://user:{BODY}@example.org/x",
    "names_in_a_row": f"password: secret = {BODY}",
    "names_in_quotes": f'password= "access_token": "{BODY}"',
    "comma": f"password=ab,{BODY}",
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "around", ["{}", "before {} after", "가나 {} 다라", "열쇠는{}를", "x\n{}\ny", "({})", "`{}`"]
)
def test_c_21_a_secret_of_every_shape_goes(shape: str, around: str):
    found = redact(around.format(SHAPES[shape]))

    assert BODY not in found
    assert SHAPES["aws"] not in found
    assert "QWxhZGRpbjpvcGVu" not in found
    assert GONE in found


@pytest.mark.parametrize(
    "text",
    [
        "Shall we sk-ip lunch?",
        "I read sk-learn-tutorial-basics yesterday.",
        "My favourite cookie: chocolate chip",
        "basic internationalization, bearer internationalization",
        "The token count is 500 tokens, token: 12.",
        "the secret: patience",
        "the secret：patience",
        "Ask me for the password later, it is on the wall.",
        "기초 basic training for bearer instruments",
        "the folder andy-of-my-grandmother-and-of-all-who-came-before-her is large",
        "See https://example.org:8080/a?b=c and mail me@example.org",
        "task_001 done, see docs/decisions/0009-tokens-are-counted-offline.md",
        "0123abcd-4567-89ab-cdef-0123456789ab",
    ],
)
def test_prose_stays(text: str):
    assert redact(text) == text


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("my password is hunter2", "my password is [redacted]"),
        ("The wifi password is now: hunter2, ok?", "The wifi password is now: [redacted] ok?"),
        ("the password for the guest wifi is hunter2", "the password for the guest wifi is [redacted]"),
        ("Password for netflix: hunter2", "Password for netflix: [redacted]"),
        ("I changed the password to Blue42!", "I changed the password to [redacted]"),
        ('my password is "open sesame now" ok', "my password is [redacted] ok"),
        ("my passphrase is correct horse battery staple. Bye", "my passphrase is [redacted]. Bye"),
        ("the pin code for the door is 4711", "the pin code for the door is [redacted]"),
        ("my api key is abcdef123456", "my api key is [redacted]"),
        ("비밀번호는 hunter2야", "비밀번호는 [redacted]"),
        ("와이파이 비번 a1b2", "와이파이 비번 [redacted]"),
        ("비번을 hunter2로 바꿨어", "비번을 [redacted] 바꿨어"),
        ("비밀번호：abc1234 그리고", "비밀번호：[redacted] 그리고"),
        ("암호：a1", "암호：[redacted]"),
        ("Password for netflix：hunter2", "Password for netflix：[redacted]"),
        ("my password is： hunter2", "my password is： [redacted]"),
    ],
)
def test_a_password_in_plain_words_goes(said: str, kept: str):
    assert redact(said) == kept
    assert redact(kept) == kept


@pytest.mark.parametrize(
    "text",
    [
        "my password is not working",
        "the password is wrong",
        "password is required to log in",
        "I forgot the password to the router",
        "what is my password?",
        "the passphrase is stored in the safe",
        "shopping is fun 123",
        "the token is expired",
        "the secret is patience",
        "비밀번호가 틀렸어",
        "비밀번호 변경해줘",
    ],
)
def test_what_is_said_of_a_password_stays(text: str):
    assert redact(text) == text


def test_what_stands_around_a_secret_stays():
    assert redact('{"password":"a b","user":"bob"}') == f'{{"password":"{GONE}","user":"bob"}}'
    assert redact(f"use {SHAPES['anthropic']} today") == f"use {GONE} today"
    assert redact(f"a\n{PEM}\nb") == f"a\n{GONE}\nb"


def test_a_key_that_is_cut_off_goes_to_the_end():
    assert redact(f"a -----BEGIN PRIVATE KEY-----\n{BODY}") == f"a {GONE}"


def test_a_document_is_redacted_in_all_its_depth():
    document = {"a": [{"b": SHAPES["github"]}, 1, None, True], SHAPES["aws"]: "x", "c": (SHAPES["jwt"],)}

    assert BY_SHAPE.redacted(document) == {"a": [{"b": GONE}, 1, None, True], GONE: "x", "c": [GONE]}


def test_what_is_known_by_its_value_goes_whatever_it_looks_like():
    known = ["the blue bees sleep", "blue bees"]
    redactor = Redactor(lambda: known)

    assert redactor.redact("say the blue bees sleep, or blue bees.") == f"say {GONE}, or {GONE}."
    assert redactor.redacted({"blue bees": ["blue bees", {"a": "password=blue bees"}, 1]}) == {
        GONE: [GONE, {"a": f"password={GONE}"}, 1]
    }
    known.clear()
    assert redactor.redact("blue bees") == "blue bees", "what is known is asked anew"


PIECES = [
    *SHAPES.values(),
    *("password", "secret", "token", "=", ":", '"', "'", "\\", " ", "\n", "-", "eyJ", ".", "://", "@", "sk-"),
    *("-----BEGIN A-----", "-----END A-----", "Bearer ", "authorization: ", GONE, "[", "]", "한글", "a", "9"),
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=30).map("".join)


@given(texts)
def test_redacting_twice_is_redacting_once(text: str):
    once = redact(text)

    assert redact(once) == once


@given(st.sampled_from(sorted(SHAPES)), texts, texts)
def test_no_surroundings_save_a_secret(shape: str, before: str, after: str):
    # A mark of PEM before it may swallow it, which is as good.
    found = redact(f"{before.replace(BODY, '')}\n{SHAPES[shape]}\n{after.replace(BODY, '')}")

    assert BODY not in found
