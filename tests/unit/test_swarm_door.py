"""The certificate by which containers on other nodes recognise the host."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from orchestrator.containers.swarm.door import ensure_certificate


def load(certificate: Path, key: Path) -> None:
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)


@pytest.mark.parametrize("emptied", ["carrier.crt", "carrier.key"])
def test_a_file_that_a_power_cut_left_empty_is_made_again_with_the_other(
    tmp_path: Path, emptied: str
) -> None:
    certificate, key = tmp_path / "carrier.crt", tmp_path / "carrier.key"
    ensure_certificate(certificate, key)
    (tmp_path / emptied).write_bytes(b"")

    ensure_certificate(certificate, key)

    load(certificate, key)


def test_a_pair_that_is_there_stays(tmp_path: Path) -> None:
    certificate, key = tmp_path / "carrier.crt", tmp_path / "carrier.key"
    ensure_certificate(certificate, key)
    before = (certificate.read_bytes(), key.read_bytes())

    ensure_certificate(certificate, key)

    assert (certificate.read_bytes(), key.read_bytes()) == before


def test_each_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_sync(descriptor: int) -> None:
        steps.append(f"{os.fstat(descriptor).st_size > 0} sync")
        fsync(descriptor)

    def noted_rename(path: Path, target: Path) -> Path:
        steps.append(target.name)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    ensure_certificate(tmp_path / "carrier.crt", tmp_path / "carrier.key")

    assert steps == ["True sync", "carrier.key", "True sync", "carrier.crt"]
