"""`andy …` in an internet of two names, where every address leads to loopback: `INTERNET_PORT=n … up`.

Run as a file: what lies beside it is imported by its bare name.
"""

from __future__ import annotations

import os

from small_internet import PUBLIC, SmallInternet

from orchestrator.cli.main import main
from orchestrator.proxies.egress import proxy

PORT = int(os.environ.pop("INTERNET_PORT"))


def small_internet() -> SmallInternet:
    return SmallInternet(port=PORT, names={"good.example": [[PUBLIC]], "home.example": [["127.0.0.1"]]})


if __name__ == "__main__":
    proxy.Resolver = small_internet  # type: ignore[assignment,misc]
    main()
