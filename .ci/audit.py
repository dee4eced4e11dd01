"""Look the locked versions up among known vulnerabilities: `make audit`.

Exits 1 where a version has one, and 0 where none has. Where the data cannot be reached it says so, and exits
0 or, with `make audit SURE=1`, 2: a check that has to be sure does not pass on what nobody looked up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

LOCKS = ("requirements-dev.lock", "container/requirements.lock")
NOT_SURE = 2
UNREACHABLE = ("ConnectionError", "Connection error", "connect", "timed out", "resolve")
NOT_AUDITED = (
    "Not audited: the vulnerability data of PyPI cannot be reached from here. Try again where it can."
)


def verdict(output: str, errors: str, code: int) -> tuple[int, str]:
    """Return the exit code and what to say, from what `pip-audit --format json` wrote and ended with."""
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        if any(word in errors for word in UNREACHABLE):
            return 0, NOT_AUDITED
        return code or 1, f"pip-audit failed: {errors.strip()}"
    found = [(one, each) for one in packages for each in one.get("vulns", ())]
    if found:
        lines = [
            f"{one['name']} {one['version']}: {each['id']}, "
            f"fixed in {', '.join(each['fix_versions']) or 'none'}"
            for one, each in found
        ]
        return 1, "\n".join(lines)
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    if len(skipped) == len(packages):
        # An index mirror without PyPI's JSON API answers 404 to every question.
        return 0, NOT_AUDITED
    said = f"{len(packages) - len(skipped)} locked packages have no known vulnerability."
    return 0, said + (f" Not found on PyPI: {', '.join(skipped)}." if skipped else "")


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    command += ["--no-deps", "--disable-pip", *(word for lock in LOCKS for word in ("--requirement", lock))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    code, text = verdict(done.stdout, done.stderr, done.returncode)
    if text == NOT_AUDITED and os.environ.get("SURE"):
        code = NOT_SURE
    sys.stdout.write(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
