"""`docs/requirements.md` names a test for each requirement of the context."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| C-(?P<number>\d+) \|[^|]*\| (?P<proof>[^|]+) \|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "requirements.md").read_text()
UNPROVED = {19}
"""Never given."""


def rows() -> dict[int, str]:
    return {int(found["number"]): found["proof"] for found in ROW.finditer(PAGE)}


def test_every_number_has_a_row_in_its_order():
    assert list(rows()) == list(range(1, 28))


def test_every_row_names_a_test_that_exists():
    defined = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for number, proof in rows().items():
        named = re.findall(r"`(test_\w+)`", proof)
        assert named or number in UNPROVED, number
        assert [name for name in named if f"def {name}(" not in defined] == []


def test_git_ignores_what_conversations_were_about(tmp_path):
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for path in ("data/context/family/.ai-brain/context.json", "groups/family/.ai-brain/context.json"):
        asked = subprocess.run(["git", "check-ignore", "-q", path], cwd=tmp_path, check=False)
        assert asked.returncode == 0, path
    known = subprocess.run(["git", "check-ignore", "-q", "docs/context.md"], cwd=tmp_path, check=False)
    assert known.returncode == 1
