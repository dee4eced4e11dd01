from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from orchestrator.calendars.client import CalendarUnreadable
from orchestrator.calendars.service import login_of
from orchestrator.domain.errors import SettingError
from orchestrator.domain.values import Folder
from orchestrator.domain.web_search import SearchService
from orchestrator.home.settings import Settings
from orchestrator.proxies import web_search
from orchestrator.proxies.model import credentials
from orchestrator.proxies.model.credentials import (
    Credential,
    CredentialKind,
    CredentialSource,
    KnownSecrets,
)
from orchestrator.proxies.run_tokens import new_token, token_hash
from orchestrator.store.schedule.followed_calendars import FollowedCalendar


def source(home: Path, dotenv: str | None = None, **environment: str) -> CredentialSource:
    if dotenv is not None:
        (home / ".env").write_text(dotenv)
    return CredentialSource(home, environment)


def read(home: Path, dotenv: str | None = None, **environment: str) -> Credential:
    found = source(home, dotenv, **environment).current()
    assert found is not None
    return found


def test_without_any_setting_there_is_no_credential(tmp_path: Path) -> None:
    assert source(tmp_path).current() is None
    assert source(tmp_path, "ANTHROPIC_API_KEY=\nASSISTANT_NAME=Andy\n").current() is None


@pytest.mark.parametrize(
    ("setting", "secret", "kind"),
    [
        ("ANTHROPIC_API_KEY", "sk-1", CredentialKind.API_KEY),
        ("CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-oat01-x", CredentialKind.OAUTH),
        ("ANTHROPIC_AUTH_TOKEN", "gateway", CredentialKind.BEARER),
        ("ANTHROPIC_AUTH_TOKEN", "sk-ant-oat01-x", CredentialKind.OAUTH),
    ],
)
def test_each_setting_is_read_from_both_places(
    tmp_path: Path, setting: str, secret: str, kind: CredentialKind
) -> None:
    expected = Credential(kind=kind, secret=secret, setting=setting)
    assert read(tmp_path, **{setting: secret}) == expected
    assert read(tmp_path, f'{setting}="{secret}"\n') == expected


def test_the_environment_goes_before_the_file_and_a_key_before_a_token(tmp_path: Path) -> None:
    assert read(tmp_path, "ANTHROPIC_API_KEY=file\n", ANTHROPIC_AUTH_TOKEN="own").secret == "own"
    assert read(tmp_path, "CLAUDE_CODE_OAUTH_TOKEN=b\nANTHROPIC_API_KEY=a\n").secret == "a"


def test_nothing_in_the_file_is_expanded(tmp_path: Path) -> None:
    assert read(tmp_path, "ANTHROPIC_API_KEY=a${HOME}b\n").secret == "a${HOME}b"


def test_the_process_environment_stays_as_it_is(tmp_path: Path) -> None:
    before = dict(os.environ)
    read(tmp_path, "ANTHROPIC_API_KEY=a\n")
    assert dict(os.environ) == before


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = source(tmp_path, "ANTHROPIC_API_KEY=one\n")
    reads: list[Path] = []
    parse = __import__("dotenv").dotenv_values
    monkeypatch.setattr(
        "dotenv.dotenv_values", lambda path, **named: reads.append(path) or parse(path, **named)
    )
    for _ in range(3):
        assert found.current() is not None
    assert len(reads) == 1
    replacement = tmp_path / "new"
    replacement.write_text("ANTHROPIC_API_KEY=two\n")
    replacement.replace(tmp_path / ".env")
    assert found.current() == Credential(
        kind=CredentialKind.API_KEY, secret="two", setting="ANTHROPIC_API_KEY"
    )
    (tmp_path / ".env").unlink()
    assert found.current() is None


def test_no_text_form_shows_the_secret(tmp_path: Path) -> None:
    found = source(tmp_path, "ANTHROPIC_API_KEY=sk-hidden\n")
    credential = found.current()
    assert "sk-hidden" not in f"{credential!r} {credential} {found!r} {found._read!r}"


@pytest.mark.parametrize("secret", ["two words", "line\\nbreak\x01", "clé"])
def test_a_credential_that_no_header_can_carry_is_refused_without_showing_it(
    tmp_path: Path, secret: str
) -> None:
    with pytest.raises(SettingError, match="ANTHROPIC_API_KEY") as caught:
        source(tmp_path, ANTHROPIC_API_KEY=secret).current()
    assert secret not in str(caught.value)


def test_an_unreadable_file_is_a_setting_error(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"ANTHROPIC_API_KEY=\xff\xfe\n")
    with pytest.raises(SettingError, match=r"\.env"):
        source(tmp_path).current()


def test_a_pipe_in_place_of_the_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".env")
    with pytest.raises(SettingError, match=r"\.env"):
        source(tmp_path).current()


def test_the_upstream_is_the_api_unless_a_setting_names_another(tmp_path: Path) -> None:
    assert source(tmp_path).upstream() == "https://api.anthropic.com"
    found = source(tmp_path, "ANTHROPIC_BASE_URL=http://gateway:8080/llm/\n")
    assert found.upstream() == "http://gateway:8080/llm"


@pytest.mark.parametrize(
    "url",
    [
        "gateway",
        "ftp://x",
        "http://",
        "http://u:p@x",
        "http://x:0",
        "http://x:y",
        "http://x/?a=1",
        "http://x y",
    ],
)
def test_an_upstream_that_is_no_service_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingError, match="ANTHROPIC_BASE_URL"):
        source(tmp_path, ANTHROPIC_BASE_URL=url).upstream()


def test_tokens_differ_and_only_their_hash_is_kept() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    token = tokens.pop()
    assert len(token) > 40
    assert token_hash(token) == token_hash(token)
    assert len(token_hash(token)) == 64
    assert token not in token_hash(token)


@pytest.mark.parametrize("is_in_file", [True, False])
def test_a_secret_may_be_a_file_of_its_own(tmp_path: Path, *, is_in_file: bool) -> None:
    key, brave = tmp_path / "key", tmp_path / "brave"
    key.write_text("sk-ant-api03-4Zq81x7P\n")
    brave.write_text("BSA9x2kQ77wLmZ4t")
    names = {"ANTHROPIC_API_KEY_FILE": str(key), "BRAVE_API_KEY_FILE": str(brave), "SSL_CERT_FILE": str(key)}
    dotenv = "".join(f"{name}={value}\n" for name, value in names.items()) if is_in_file else None
    found = source(tmp_path, dotenv, **({} if is_in_file else names))

    assert found.current() == Credential(
        kind=CredentialKind.API_KEY, secret="sk-ant-api03-4Zq81x7P", setting="ANTHROPIC_API_KEY"
    )
    assert found.value("BRAVE_API_KEY") == "BSA9x2kQ77wLmZ4t"
    assert found.value("SSL_CERT") is None
    assert {"sk-ant-api03-4Zq81x7P", "BSA9x2kQ77wLmZ4t"} <= set(KnownSecrets(found)())


def test_a_value_goes_before_the_file_that_is_named_beside_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-file")
    names = {"ANTHROPIC_API_KEY": "sk-own", "ANTHROPIC_API_KEY_FILE": str(tmp_path / "key")}
    assert read(tmp_path, **names).secret == "sk-own"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"k" * 100_000])
@pytest.mark.parametrize("is_in_file", [True, False])
def test_a_file_of_the_key_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, *, is_in_file: bool
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    dotenv = f"ANTHROPIC_API_KEY_FILE={path}\n" if is_in_file else None
    environment = {} if is_in_file else {"ANTHROPIC_API_KEY_FILE": str(path)}
    with pytest.raises(SettingError, match=f"ANTHROPIC_API_KEY_FILE names {path}"):
        source(tmp_path, dotenv, **environment).current()


def test_a_pipe_is_no_file_of_a_secret(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingError, match="it is no file"):
        source(tmp_path, ANTHROPIC_API_KEY_FILE=str(tmp_path / "pipe")).current()
    assert source(tmp_path, OTHER_TOKEN_FILE=str(tmp_path / "pipe")).current() is None


def test_a_file_of_somebody_elses_secret_is_no_business_of_andys(tmp_path: Path) -> None:
    assert source(tmp_path, MYSQL_PASSWORD_FILE=str(tmp_path / "absent")).current() is None


def test_a_token_that_nobody_escapes_has_one_form_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiIxIn0~._=-"
    assert list(credentials.json_escapes(token)) == [token]
    monkeypatch.setattr(credentials, "_NEVER_ESCAPED", re.compile(r"(?!)"))
    assert set(credentials.json_escapes(token)) == {token}, "the long way finds no other"


def test_a_secret_of_the_environment_that_is_no_utf_8_is_known_as_any_other(tmp_path: Path) -> None:
    environment = {"FTP_PASSWORD": os.fsdecode("Käsekuchen-1971".encode("latin-1"))}
    forms = KnownSecrets(CredentialSource(tmp_path, environment))()
    assert {environment["FTP_PASSWORD"], "K%E4sekuchen-1971", "S+RzZWt1Y2hlbi0xOTcx"} <= {*forms}


def test_a_value_that_no_header_carries_is_said_to_be_wrong_and_not_to_be_missing(tmp_path: Path) -> None:
    found = source(tmp_path, "BRAVE_API_KEY=BSA9x2kQ77wLmZ4\u200bt\n")
    told = "BRAVE_API_KEY holds a character that cannot be sent"
    with pytest.raises(SettingError, match=told) as refused:
        found.value("BRAVE_API_KEY")
    assert "BSA9" not in str(refused.value)
    assert not found.is_usable("BRAVE_API_KEY")
    assert not found.is_usable("NOTES_TOKEN")

    with pytest.raises(web_search.SearchFailed, match="cannot be used") as failed:
        web_search.request_of(SearchService.BRAVE, "weather", Settings(), found.value)
    assert told in (failed.value.fix or "")

    calendar = FollowedCalendar(
        folder=Folder("family"),
        name="work",
        address="https://calendar.example/a.ics",
        user="mina",
        password_env="BRAVE_API_KEY",
        notice_minutes=None,
    )
    with pytest.raises(CalendarUnreadable, match=told):
        login_of(calendar, found.value)
