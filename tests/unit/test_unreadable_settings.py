"""Settings that cannot be read, and a store that is too new, are told with what fixes it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest

from orchestrator.cli import client, host_process, terminal
from orchestrator.domain.errors import NotRunning
from orchestrator.home import setting_sources
from orchestrator.home.directory import Home


def test_a_file_of_another_user_is_told_with_chown(monkeypatch, tmp_path):
    error = PermissionError(13, "Permission denied")
    monkeypatch.delenv("ANDY_HOME", raising=False)
    path = tmp_path / ".env"
    assert f"sudo chown {os.geteuid()} {path}" in str(setting_sources.unreadable(path, error))

    monkeypatch.setenv("ANDY_HOME", "/andy")
    told = str(setting_sources.unreadable(path, error))
    assert "on the host" in told
    assert f"sudo chown {os.geteuid()} .env && sudo chmod 600 .env" in told


def test_status_says_that_the_store_is_of_a_newer_andy(tmp_path):
    home = Home(tmp_path)
    home.database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("PRAGMA user_version = 9999")

    with pytest.raises(NotRunning, match=r"cannot start: .*version 9999"):
        client.running_status(home)


@pytest.mark.parametrize(("content", "reason"), [(b"\xff", "cannot be read"), (b"ANDY_PORT=x", "ANDY_PORT")])
def test_status_says_that_andy_cannot_start_with_his_settings(tmp_path, content, reason):
    (tmp_path / ".env").write_bytes(content)

    with pytest.raises(NotRunning, match=f"is not running on .* and cannot start: .*{reason}"):
        client.running_status(Home(tmp_path))


def test_secrets_that_others_may_read_are_told_at_the_start(tmp_path, capsys):
    path = tmp_path / ".env"
    path.write_text("KEY=x")
    path.chmod(0o644)
    host_process.warn_of_open_secrets(path)
    assert f"chmod 600 {path}" in capsys.readouterr().err

    path.chmod(0o600)
    host_process.warn_of_open_secrets(path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damaged", ["token", "address"])
@pytest.mark.parametrize("content", [b"\xff\xfe", b"\0\x01\n", b""])
def test_damaged_files_of_the_running_andy_are_one_error_with_the_fix(tmp_path, damaged, content):
    home = Home(tmp_path)
    home.make()
    home.address_file.write_text("http://127.0.0.1:1")
    home.token()
    (home.data / damaged).write_bytes(content)

    with pytest.raises(NotRunning, match=f"{home.data / damaged} is damaged: .*'andy up'"):
        client.running_status(home)


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:87x0", "http://[", "http://127.0.0.1:99999", "http://"]
)
def test_an_address_that_is_none_is_a_damaged_file(tmp_path, address):
    home = Home(tmp_path)
    home.make()
    home.address_file.write_text(address)
    home.token()

    with pytest.raises(NotRunning, match=f"{home.address_file} is damaged: .*'andy up'"):
        client.running_status(home)


def test_a_damaged_address_is_part_of_no_address_that_is_shown(tmp_path):
    home = Home(tmp_path)
    home.make()
    assert terminal.web_origin(tmp_path) == "http://127.0.0.1:8700"
    home.address_file.write_bytes(b"\0garbage")

    with pytest.raises(NotRunning, match=f"{home.address_file} is damaged: .*'andy up'"):
        terminal.web_origin(tmp_path)
