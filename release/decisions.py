"""Decide the version, the changelog and the Compose file of a release. Pure: texts in, texts out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

UNRELEASED = "## Unreleased"
HOST, AGENT = "andy-orchestrator", "andy-agent"
"""The images, by their names in docker-compose.yml."""
IMAGES = (HOST, AGENT)
LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?(/.*)?")

_VERSION = re.compile(r"\d+\.\d+\.\d+(rc\d+)?")
_MADE = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
_SECTION = re.compile(rf"^{UNRELEASED}[ \t]*\n(?P<body>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^- \S", re.MULTILINE)
_FEATURES = re.compile(r"^### (Added|Changed|Deprecated|Removed)$", re.MULTILINE)
_HEAD = re.compile(r"\A(#.*\n)*")
_BUILD = re.compile(r"^    build:\n(?:     .*\n)+", re.MULTILINE)
_IMAGE = re.compile(r"^    image: (.*)$", re.MULTILINE)


class ReleaseRefused(Exception):
    """A release cannot be made; the text is one line that names the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The facts about the tree that a release is made of."""

    version: str
    """The version in `orchestrator/__init__.py`."""
    changelog: str
    changed: Sequence[str] = ()
    """The files that differ from the last commit, also those that git does not know."""
    tags: Sequence[str] = ()
    branch: str | None = "main"
    """The branch that the commit of the release goes onto; None where HEAD is on no branch."""
    is_base_pinned: bool = True
    """Whether the files name the base of the images by its digest."""


def version_of(text: str) -> str:
    """Return the version in the text of `orchestrator/__init__.py`. Raises `ReleaseRefused` without one."""
    match = _MADE.search(text)
    if match is None:
        raise ReleaseRefused('orchestrator/__init__.py has no line __version__ = "…": put it back with git.')
    return match[1]


def with_version(text: str, version: str) -> str:
    """Return the text of `orchestrator/__init__.py` with another version."""
    return _MADE.sub(f'__version__ = "{version}"', text, count=1)


def choose_version(tree: Tree, wanted: str | None, *, is_dry: bool) -> str:
    """Return the version to release: `wanted`, or if that is None, the version in the tree's code.

    A dry run may be made on no branch and with a base image that is not pinned.

    Raises:
        ReleaseRefused: the tree or the version does not allow it.
    """
    if tree.changed:
        shown = ", ".join(tree.changed[:3]) + (" …" if len(tree.changed) > 3 else "")
        raise ReleaseRefused(f"Not committed: {shown}. Commit it, or put it away, and release again.")
    if tree.branch is None and not is_dry:
        raise ReleaseRefused("HEAD is on no branch, where the commit would be lost: 'git switch main' first.")
    notes = notes_of(tree.changelog)
    version = wanted or tree.version
    if not _VERSION.fullmatch(version):
        raise ReleaseRefused(f"'{version}' is no version: write three numbers, such as VERSION=0.2.0.")
    _check_order(version, tree.tags, notes)
    if not tree.is_base_pinned and not is_dry:
        raise ReleaseRefused(
            "The base image is named by its tag alone: 'make pin' writes its digest, commit that."
        )
    return version


def _check_order(version: str, tags: Iterable[str], notes: str) -> None:
    """Raise `ReleaseRefused` for a version that is not above all versions in `tags`.

    The text names the next possible version, which depends on the notes.
    """
    released = [Version(tag[1:]) for tag in tags if tag[:1] == "v" and _VERSION.fullmatch(tag[1:])]
    latest = max(released, default=None)
    if latest is None or Version(version) > latest:
        return
    reason = "is tagged already" if Version(version) in released else f"is below {latest}, which is tagged"
    raise ReleaseRefused(f"{version} {reason}: 'make release VERSION={next_version(latest, notes)}'.")


def next_version(latest: Version, notes: str) -> str:
    """Return the version after `latest`, by the notes of what has changed since.

    The second number counts up for anything but corrections. For corrections alone it is the third, or after
    a release candidate, the version of the candidate.
    """
    if _FEATURES.search(notes):
        return f"{latest.major}.{latest.minor + 1}.0"
    return (
        latest.base_version if latest.is_prerelease else f"{latest.major}.{latest.minor}.{latest.micro + 1}"
    )


def notes_of(changelog: str) -> str:
    """Return what the changelog has under "Unreleased". Raises `ReleaseRefused` if that has no entry."""
    section = _SECTION.search(changelog)
    if section is None or not _ENTRY.search(section["body"]):
        raise ReleaseRefused(
            f"CHANGELOG.md has no entry under '{UNRELEASED}': write what changed for users, and commit it."
        )
    return section["body"].strip() + "\n"


def released_changelog(changelog: str, version: str, day: str) -> str:
    """Return the changelog with the unreleased entries under the version and the day of its release.

    An empty part for unreleased entries is above it. `day` is an ISO day.
    """
    return _SECTION.sub(
        lambda section: f"{UNRELEASED}\n\n## {version} - {day}\n{section['body']}", changelog, count=1
    )


def image_labels(name: str, *, version: str, revision: str, created: str) -> dict[str, str]:
    """Return the labels of an image: annotations of the Open Container Initiative, by their full names.

    `revision` is the commit, `created` an ISO time.
    """
    about = {
        "title": name,
        "version": version,
        "revision": revision,
        "created": created,
        "licenses": "MIT",
        "description": "Andy, a personal assistant for group chats"
        + (": the image that agents run in" if name == AGENT else ""),
    }
    return {f"org.opencontainers.image.{key}": text for key, text in about.items()}


def compose_file(text: str, images: Mapping[str, str], version: str) -> str:
    """Return a docker-compose.yml that works in a folder without a clone: it builds nothing.

    `text` is that of the checkout. `images` maps the names of images in it, such as `andy-agent:latest`, to
    those of the release.

    Raises:
        ReleaseRefused: the text has an image that `images` does not name.
    """
    head = (
        f"# Andy {version} without a clone: 'docker compose up -d' gets what is missing and runs Andy.\n"
        "# Settings are lines of .env beside this file. Valid for docker-compose 1.29, too.\n"
    )
    made = head + _BUILD.sub("", _HEAD.sub("", text, count=1))
    # An image's name is the default of a variable there: `${NAME:-andy-agent:latest}`.
    for before, after in images.items():
        made = made.replace(f":-{before}}}", f":-{after}}}")
    unknown = [image for image in _IMAGE.findall(made) if not any(name in image for name in images.values())]
    if unknown:
        raise ReleaseRefused(
            f"docker-compose.yml has the image {unknown[0]}, which no release makes: name it."
        )
    return made


def checksums(hashes: Mapping[str, str]) -> str:
    """Return the text of SHA256SUMS, as `sha256sum --check` reads it."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))


def next_steps(version: str, *, branch: str, registry: str | None) -> str:
    """Return the text with the commands that publish a release, which is on this machine only, or undo it.

    `registry` is the one for the images; None puts a placeholder into the command.
    """
    where = f"dist/{version}"
    return "\n".join(
        (
            f"{version} is made: {where}. Nothing has left this machine; what does, in this order:",
            f"  make release-push VERSION={version} REGISTRY={registry or 'ghcr.io/YOU'}    # both images",
            f"  git push --atomic origin {branch} v{version}",
            f"  pipx run twine upload {where}/*.whl {where}/*.tar.gz    # PyPI",
            f"  gh release create v{version} --verify-tag --notes-file {where}/CHANGES.md {where}/*",
            f"To take it back before that: git tag -d v{version} && git reset --keep HEAD~ && rm -r {where}",
        )
    )
