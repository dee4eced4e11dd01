"""Have csp-evaluator judge the policies of all pages, and hadolint the Dockerfiles, for `make conformance`.

It prints what they find, and fails where something is found that is not explained here. Both are installed
into `.conformance/`, locked.
"""

from __future__ import annotations

import json
import subprocess
import sys

from mcp_suite import HERE, PLACE, ROOT, installed

from orchestrator.web.api import pairing
from orchestrator.web.console.page import policy

POLICIES = {
    "a page": policy("r4nd0m-N0nce_of16bytes"),
    "any other answer": policy(),
    "pairing": pairing.POLICY,
}
OWN_FILES = "scripts of its own are htmx and Andy's; what a chat sent is only ever served as a download"
EXPLAINED = {
    "a page: script-src 'self'": OWN_FILES,
    "any other answer: script-src 'self'": OWN_FILES,
    "Dockerfile: DL3008": "Debian's packages are what its mirror gives: docs/security.md says so",
    "Dockerfile: SC2086": "the words of a loop over two names, and an argument that is meant to be several",
    "container/Dockerfile: DL3008": "Debian's packages are what its mirror gives: docs/security.md says so",
    "container/Dockerfile: DL3066": "the runtime gives the number of the user itself",
}
"""Findings that stay, each with the reason."""


def main() -> int:
    """Return 1 when something is found that is not explained."""
    findings = [*judged_policies(), *linted_files()]
    for finding in sorted(set(findings)):
        print(f"{finding}: {EXPLAINED.get(finding, 'not explained')}")
    return 1 if set(findings) - EXPLAINED.keys() else 0


def judged_policies() -> list[str]:
    environment = installed()
    answer = subprocess.run(
        ["node", HERE / "evaluate_policies.mjs", PLACE],
        input=json.dumps(POLICIES),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [f"{page}: {directive} {value}".strip() for page, _, directive, value in json.loads(answer.stdout)]


def linted_files() -> list[str]:
    tools = PLACE / "hadolint"
    program = tools / "bin" / "hadolint"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", tools], check=True)
        subprocess.run(
            [tools / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--require-hashes", "-r", HERE / "hadolint.lock"],
            check=True,
        )  # fmt: skip
    # It ends with 1 where it finds something.
    answer = subprocess.run(
        [program, "--format", "json", "Dockerfile", "container/Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [f"{one['file']}: {one['code']}" for one in json.loads(answer.stdout)]


if __name__ == "__main__":
    sys.exit(main())
