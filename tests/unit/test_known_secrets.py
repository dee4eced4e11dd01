"""Secrets that the host knows by their values, in the forms in which they may be quoted."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.base.redaction import GONE, Redactor
from orchestrator.proxies.model.credentials import (
    CredentialSource,
    KnownSecrets,
    forms_of,
    is_ordinary,
    secret_values,
)

PLAIN = "velvet-tiger-49"
ODD = 'ma"rc\\o+ polo/ü&1'


def known(home: Path, dotenv: str = "", **environment: str) -> Redactor:
    (home / ".env").write_text(dotenv)
    return Redactor(KnownSecrets(CredentialSource(home, environment)))


def all_escaped(text: str, digits: str = "{:04x}") -> str:
    return "".join("\\u" + digits.format(ord(character)) for character in text)


def test_values_of_both_places_go_by_the_names_that_they_have(tmp_path: Path):
    redactor = known(
        tmp_path,
        f"ANTHROPIC_API_KEY={PLAIN}\nMAIL_PASSWORD=pale.moon.77\nASSISTANT_NAME=Bartholomew2\n",
        GITHUB_TOKEN="quiet_river_3",
        EDITOR="nano-editor-5",
    )

    said = f"{PLAIN} pale.moon.77 quiet_river_3 Bartholomew2 nano-editor-5"
    assert redactor.redact(said) == f"{GONE} {GONE} {GONE} Bartholomew2 nano-editor-5"


def test_the_password_of_a_proxy_goes_and_its_address_stays(tmp_path: Path):
    redactor = known(tmp_path, HTTPS_PROXY="http://jane:s3cr%20t!word@proxy.example:3128")

    assert redactor.redact("it is s3cr t!word, or s3cr%20t!word") == f"it is {GONE}, or {GONE}"
    assert redactor.redact("proxy.example:3128 of jane") == "proxy.example:3128 of jane"


@pytest.mark.parametrize("secret", [PLAIN, ODD])
@pytest.mark.parametrize("before", ["", "a", "ab", "user:"])
def test_a_value_goes_in_each_form_in_which_it_is_quoted(secret: str, before: str):
    redactor = Redactor(lambda: forms_of([secret]))
    longer = f"{before}{secret}, and more".encode()
    shown = [
        *(secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False)),
        *(json.dumps(json.dumps(secret)), json.dumps(json.dumps(secret, ensure_ascii=False))),
        *(all_escaped(secret), all_escaped(secret).replace("\\u", "\\\\u")),
        *(all_escaped(secret, "{:04X}"), json.dumps(all_escaped(secret, "{:04X}"))),
        *(quote(secret, safe=""), quote(secret, safe="").lower(), quote_plus(secret)),
        *(base64.b64encode(secret.encode()).decode(), base64.urlsafe_b64encode(secret.encode()).decode()),
        *(base64.b64encode(longer).decode(), base64.urlsafe_b64encode(longer).decode()),
    ]

    for form in shown:
        found = redactor.redact(f"see {form} there")
        assert GONE in found, form
        assert secret not in found


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        "short77",
        "placeholder",
        "change_me",
        "Busan Station",
        "PRODUCTION",
        "20261122",
        "127.0.0.1:8700",
    ],
)
def test_what_may_stand_in_any_text_is_no_secret(value: str):
    assert is_ordinary(value)
    assert list(secret_values([("API_KEY", value)])) == []


@pytest.mark.parametrize(
    "value", ["hunter22", "velvetTiger", "correct-horse-battery-staple", "1234567890123456789"]
)
def test_what_no_text_has_by_chance_is_one(value: str):
    assert list(secret_values([("API_KEY", value)])) == [value]


def test_a_path_is_none(tmp_path: Path):
    assert list(secret_values([("SSH_KEY", str(tmp_path)), ("SSH_KEY", "x" * 5_000)])) == ["x" * 5_000]


def test_a_changed_file_is_read_again_and_a_broken_one_forgets_nothing(tmp_path: Path):
    redactor = known(tmp_path, f"API_KEY={PLAIN}\n")
    assert redactor.redact(PLAIN) == GONE
    (tmp_path / ".env").write_text("API_KEY=another-one-5\n")
    assert redactor.redact("another-one-5") == GONE
    (tmp_path / ".env").unlink()
    (tmp_path / ".env").mkdir()
    assert redactor.redact("another-one-5") == GONE


def unreadable_folder(home: Path) -> str:
    (home / ".env").mkdir()
    return ""


def named_key_missing(home: Path) -> str:
    (home / "brave").write_text("BSA9x2kQ77wLmZ4t")
    (home / ".env").write_text(
        f"ANTHROPIC_API_KEY_FILE={home}/missing\nBRAVE_API_KEY_FILE={home}/brave\nMAIL_TOKEN=pale.moon.77\n"
    )
    return "BSA9x2kQ77wLmZ4t pale.moon.77"


@pytest.mark.parametrize("broken", [unreadable_folder, named_key_missing])
def test_what_can_be_read_goes_though_the_file_cannot_be_read_from_the_start(
    tmp_path: Path, broken: Callable[[Path], str]
):
    readable = broken(tmp_path)
    source = CredentialSource(tmp_path, {"GITHUB_TOKEN": "quiet_river_3"})
    redactor = Redactor(KnownSecrets(source, own=["a-door-token-1"]))

    for secret in ("quiet_river_3", "a-door-token-1", *readable.split()):
        assert redactor.redact(secret) == GONE


def test_a_key_that_is_no_longer_found_hides_neither_the_last_nor_the_new_secrets(tmp_path: Path):
    redactor = known(tmp_path, f"ANTHROPIC_API_KEY={PLAIN}\n")
    assert redactor.redact(PLAIN) == GONE
    named_key_missing(tmp_path)

    assert redactor.redact(f"{PLAIN} pale.moon.77") == f"{GONE} {GONE}"


def test_a_missing_key_of_the_environment_does_not_hide_its_other_files(tmp_path: Path):
    (tmp_path / "brave").write_text("BSA9x2kQ77wLmZ4t")
    redactor = known(
        tmp_path,
        ANTHROPIC_API_KEY_FILE=str(tmp_path / "missing"),
        BRAVE_API_KEY_FILE=str(tmp_path / "brave"),
    )

    assert redactor.redact("BSA9x2kQ77wLmZ4t") == GONE


def test_what_the_host_made_itself_goes_too(tmp_path: Path):
    redactor = Redactor(KnownSecrets(CredentialSource(tmp_path, {}), own=["a-door-token-1"]))

    assert redactor.redact("a-door-token-1") == GONE


@given(st.text(min_size=8, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_no_surroundings_save_a_known_value(secret: str, before: str, after: str):
    assume(secret not in GONE)
    known_forms = forms_of([secret])
    assume(all(form not in GONE for form in known_forms))
    redactor = Redactor(lambda: known_forms)

    found = redactor.redact(f"{before}{secret}{after}")

    assert GONE in found
    assert redactor.redact(found) == found
