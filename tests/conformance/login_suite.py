"""Run the conformance suite's scenarios of logins (OAuth) against Andy, and print one line a scenario.

`make conformance` calls this. Andy logs in as his owner would, and an agent calls through his gateway. It
fails where a scenario fails that is not listed here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from mcp_suite import HERE, SUITE_SECONDS, installed

SCENARIOS = (
    "2025-03-26-oauth-endpoint-fallback",
    "2025-03-26-oauth-metadata-backcompat",
    "basic-cimd",
    "metadata-default",
    "metadata-var1",
    "metadata-var2",
    "metadata-var3",
    "offline-access-not-supported",
    "offline-access-scope",
    "pre-registration",
    "resource-mismatch",
    "scope-from-scopes-supported",
    "scope-from-www-authenticate",
    "scope-omitted-when-undefined",
    "scope-retry-limit",
    "scope-step-up",
    "token-endpoint-auth-basic",
    "token-endpoint-auth-none",
    "token-endpoint-auth-post",
)
"""All of `auth/` but the extensions, in which no owner logs in."""
MADE_ON_PURPOSE = {
    "2025-03-26-oauth-endpoint-fallback": "no token is asked for at addresses that nobody published",
    "2025-03-26-oauth-metadata-backcompat": "its metadata names another issuer, which RFC 8414 refuses",
    "basic-cimd": "a client's id that is a URL needs a page of Andy's on the internet: he registers himself",
}


def main() -> int:
    """Return 1 when a scenario fails that should not."""
    environment, failed = installed(), []
    print("| scenario | Andy |")
    print("| --- | --- |")
    for scenario in SCENARIOS:
        found = result(scenario, environment)
        print(f"| `auth/{scenario}` | {found} |", flush=True)
        if "success" not in found or (set(found.split()) & {"failure", "warning"}):
            failed.append(scenario)
    for scenario in failed:
        if scenario not in MADE_ON_PURPOSE:
            print(f"Andy fails auth/{scenario}.", file=sys.stderr)
    return 1 if set(failed) - MADE_ON_PURPOSE.keys() else 0


def result(scenario: str, environment: dict[str, str]) -> str:
    """Return the outcome of a scenario, such as `9 success`."""
    with tempfile.TemporaryDirectory() as folder:
        client = f"{sys.executable} {HERE / 'login_client.py'}"
        command = ["conformance", "client", "--scenario", f"auth/{scenario}", "--command", client]
        command += ["--timeout", "60000", "--output-dir", folder]
        # It ends with 1 where a check fails, and says all of it on both streams.
        subprocess.run(command, env=environment, check=False, timeout=SUITE_SECONDS, capture_output=True)
        (path,) = Path(folder).rglob("checks.json")
        counts = Counter(check["status"].lower() for check in json.loads(path.read_text(encoding="utf-8")))
    del counts["info"]
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
