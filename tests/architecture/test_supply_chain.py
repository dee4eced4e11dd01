"""What Andy is built with: allowed licences, a list of parts, and an audit that says what it saw."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from docs import licences
from tests.support.skips import only_in_soak

ROOT = Path(__file__).resolve().parents[2]


def test_every_dependency_has_a_licence_that_is_allowed():
    rows = licences.licence_rows()
    assert {"pydantic", "pytest", "neonize"} <= {name for name, _, _ in rows}
    refused = {name: licence for name, _, licence in rows if not licences.is_allowed(licence)}
    assert set(refused) == licences.EXCEPTIONS


def test_a_licence_is_judged_by_its_alternatives():
    assert licences.is_allowed("GPL-3.0-or-later OR MIT")
    assert licences.is_allowed("Apache-2.0 AND CNRI-Python")
    assert not licences.is_allowed("MIT AND AGPL-3.0-only")
    assert not licences.is_allowed("none stated")


def test_the_image_installs_nothing_that_the_host_does_not_list():
    listed = {name for name, _, _ in licences.licence_rows()}
    assert set(licences.locked(licences.LOCKS["image"])) <= listed


@pytest.mark.host
@only_in_soak
def test_the_parts_of_host_and_image_are_written_as_cyclonedx(tmp_path):
    if importlib.util.find_spec("cyclonedx_py") is None:
        pytest.skip("run 'make setup': cyclonedx-bom is not installed")
    # '-o': .venv counts as set up, so that a test never installs anything.
    command = ["make", "-o", ".venv/.ready", "sbom", f"SBOM={tmp_path}"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "MAKEFLAGS": ""}, capture_output=True, check=True)
    for part in ("host", "image"):
        bom = json.loads((tmp_path / f"andy-{part}.cdx.json").read_text())
        assert bom["bomFormat"] == "CycloneDX"
        parts = {one["name"] for one in bom["components"]}
        assert set(licences.locked(licences.LOCKS[part])) <= parts
        assert all(one["externalReferences"][0]["hashes"] for one in bom["components"])


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_an_audit_that_reached_nothing_says_so_and_passes(audit):
    unknown = {"name": "a", "skip_reason": "Dependency not found on PyPI and could not be audited: a (1)"}
    assert audit.verdict(found(unknown), "", 0) == (0, audit.NOT_AUDITED)
    assert audit.verdict("", "ConnectionError: HTTPSConnectionPool(host='pypi.org')", 1) == (
        0,
        audit.NOT_AUDITED,
    )


def test_an_audit_that_failed_otherwise_fails(audit):
    code, text = audit.verdict("", "ERROR: a hash is missing", 1)
    assert (code, "a hash is missing" in text) == (1, True)


def test_a_vulnerability_fails_the_audit_and_is_named(audit):
    bad = {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    assert audit.verdict(found(bad, {"name": "b", "skip_reason": "?"}), "", 1) == (
        1,
        "a 1: PYSEC-1, fixed in 2",
    )


def test_an_audit_without_a_find_says_what_it_did_not_see(audit):
    fine = {"name": "a", "version": "1", "vulns": []}
    code, text = audit.verdict(found(fine, {"name": "b", "skip_reason": "?"}), "", 0)
    assert (code, text) == (0, "1 locked packages have no known vulnerability. Not found on PyPI: b.")


@pytest.mark.parametrize(("sure", "code"), [("", 0), ("1", 2)])
def test_an_audit_that_could_not_look_fails_only_where_it_has_to_be_sure(
    audit, monkeypatch, capsys, sure, code
):
    done = subprocess.CompletedProcess([], 1, stdout="", stderr="ConnectionError: HTTPSConnectionPool")
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setenv("SURE", sure)

    assert audit.main() == code
    assert "Not audited" in capsys.readouterr().out
