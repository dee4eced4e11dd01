"""Make a release, or try to: `make release`, `make release DRY=1`, `make release-push`.

Commit, tag, files and images are made in a scratch clone and tried as users would; only then does the tree
take them over. A failure on the way leaves the tree as it was.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import docker
from docker.utils import kwargs_from_env

from orchestrator.containers.image import registry
from release import artifacts, base_image, trial
from release.decisions import (
    IMAGES,
    LOOPBACK,
    ReleaseRefused,
    Tree,
    choose_version,
    compose_file,
    next_steps,
    notes_of,
    released_changelog,
    version_of,
    with_version,
)

ENGINE_SECONDS = 900
"""Seconds that the Docker engine may take for one request."""
CHANGELOG, CODE = "CHANGELOG.md", "orchestrator/__init__.py"
READABLE = 0o022
"""The mask of a release: files of an image are read by another user than their owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The arguments of the command line."""

    version: str | None
    """The version to release; None for that of the code."""
    is_dry: bool
    """Whether the release is only tried, and nothing of it stays."""
    registry: str | None
    """The registry for the images; None for none."""


def main() -> int:
    """Make or push a release as the command line says, and return the exit code; print a refusal's reason."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument(
        "--version", help="such as 0.2.0; else the one of the code, where it is not tagged yet"
    )
    parser.add_argument("--registry", help="the registry that the images are for, such as ghcr.io/me")
    parser.add_argument("--dry-run", action="store_true", help="make and try all of it, and keep nothing")
    parser.add_argument("--push", action="store_true", help="push the images of a release that was made")
    arguments = parser.parse_args()
    os.umask(READABLE)  # another user than the owner reads the files of an image
    try:
        if arguments.push:
            push(Path.cwd(), arguments.version, arguments.registry)
        else:
            wanted = Wanted(version=arguments.version, is_dry=arguments.dry_run, registry=arguments.registry)
            release(Path.cwd(), wanted)
    except ReleaseRefused as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def release(root: Path, wanted: Wanted) -> None:
    """Make and try the release of the checkout in `root`; then give it the commit, the tag and the files.

    A dry run changes nothing. What is left to do by hand is printed.

    Raises:
        ReleaseRefused: it cannot be made; the checkout is as it was.
    """
    if wanted.is_dry and wanted.registry and not LOOPBACK.fullmatch(wanted.registry):
        raise ReleaseRefused("A dry run pushes to this machine alone: REGISTRY=127.0.0.1:5000, or none.")
    tree = read_tree(root)
    version = choose_version(tree, wanted.version, is_dry=wanted.is_dry)
    trial.compose_program()  # raises before the long build if it is missing
    with engine() as client, tempfile.TemporaryDirectory(prefix="andy-release-") as folder:
        scratch, made = Path(folder) / "clone", Path(folder) / "made"
        clone(root, scratch)
        commit(scratch, tree, version)
        made.mkdir()
        images = images_of(scratch, version, is_dry=wanted.is_dry)
        is_taken = False
        try:
            make(client, scratch, made, version, images, is_dry=wanted.is_dry)
            try_out(client, made, Path(folder) / "trial", version, images, wanted)
            if not wanted.is_dry:
                take_over(root, scratch, made, version)
                is_taken = True
        finally:
            if not is_taken:
                artifacts.remove_images(client, images.values())
    print(
        f"A release of {version} can be made: 'make release VERSION={version}'. Nothing was changed."
        if wanted.is_dry
        else next_steps(version, branch=tree.branch or "main", registry=wanted.registry)
    )


def read_tree(root: Path) -> Tree:
    """Return the facts about the checkout in `root` by which a release is decided.

    Raises `ReleaseRefused` if it is no checkout.
    """
    git = partial(artifacts.run, "git", cwd=root)
    changed = git("status", "--porcelain", "--untracked-files=all").splitlines()
    return Tree(
        version=version_of((root / CODE).read_text(encoding="utf-8")),
        changelog=(root / CHANGELOG).read_text(encoding="utf-8"),
        changed=[line[3:] for line in changed],  # without git's two letters for the kind of change
        tags=git("tag", "--list").split(),
        branch=git("branch", "--show-current").strip() or None,
        is_base_pinned=base_image.is_pinned(root),
    )


@contextmanager
def engine() -> Iterator[docker.APIClient]:
    """Yield a client of the Docker engine, and close it after the block.

    Raises `ReleaseRefused` if none answers.
    """
    try:
        client = docker.APIClient(**kwargs_from_env(), timeout=ENGINE_SECONDS)
    except docker.errors.DockerException as error:
        raise ReleaseRefused(
            "No Docker engine answers, which builds the images: start it; 'docker info' says what ails it."
        ) from error
    with closing(client):
        yield client


def clone(root: Path, scratch: Path) -> None:
    """Clone the checkout `root` into `scratch`, with the name and address of the person who commits in it."""
    artifacts.run("git", "clone", "--quiet", "--no-hardlinks", root, scratch, cwd=root)
    for key in ("user.name", "user.email"):
        # With an empty default, git does not fail for a name that is not set.
        if value := artifacts.run("git", "config", "--default", "", "--get", key, cwd=root).strip():
            artifacts.run("git", "config", key, value, cwd=scratch)


def commit(scratch: Path, tree: Tree, version: str) -> None:
    """Write the version and the changelog of the release in the clone `scratch`, commit them and tag that."""
    day = datetime.now(UTC).date().isoformat()
    changelog = released_changelog(tree.changelog, version, day)
    (scratch / CHANGELOG).write_text(changelog, encoding="utf-8")
    code = scratch / CODE
    code.write_text(with_version(code.read_text(encoding="utf-8"), version), encoding="utf-8")
    git = partial(artifacts.run, "git", cwd=scratch)
    git("commit", "--quiet", "--all", "--message", f"Release {version}")
    # In a file: one argument of a program has room for 128 KiB, and the notes of a release may be longer.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as message:
        message.write(f"Andy {version}\n\n{notes_of(tree.changelog)}")
        message.flush()
        git("tag", "--annotate", f"v{version}", "--file", message.name)


def images_of(scratch: Path, version: str, *, is_dry: bool) -> dict[str, str]:
    """Return the names of the images to build, by their names in docker-compose.yml.

    In a dry run they have a tag of their own, which no release has.
    """
    revision = artifacts.run("git", "rev-parse", "HEAD", cwd=scratch)[:12]
    tag = f"{version}-dry-run-{revision}" if is_dry else version
    return {f"{name}:latest": f"{name}:{tag}" for name in IMAGES}


def make(
    client: docker.APIClient,
    scratch: Path,
    made: Path,
    version: str,
    images: Mapping[str, str],
    *,
    is_dry: bool,
) -> None:
    """Write all files of the release of the clone `scratch` into `made`, and build the images.

    `images` maps their names in docker-compose.yml to those that they get. In a dry run they may trust the
    certificate authorities of this machine, because they stay on it. Raises `ReleaseRefused`.
    """
    git = partial(artifacts.run, "git", cwd=scratch)
    epoch, revision = git("log", "-1", "--format=%ct %H").split()
    artifacts.write_packages(scratch, made, epoch=epoch)
    artifacts.write_parts_lists(scratch, made, version)
    # The commit before the release still has the notes as unreleased.
    notes = notes_of(git("show", f"HEAD~:{CHANGELOG}"))
    (made / artifacts.CHANGES).write_text(notes, encoding="utf-8")
    artifacts.build_images(
        client,
        scratch,
        images,
        version=version,
        revision=revision,
        created=datetime.fromtimestamp(int(epoch), UTC).isoformat(),
        takes_authorities=is_dry,
    )
    write_compose_file(scratch, made, images, version)


def write_compose_file(source: Path, made: Path, images: Mapping[str, str], version: str) -> None:
    """Write the Compose file of a release into `made`, and the checksums of all files there anew.

    `source` is a checkout with the release's tag. `images` maps the names in its docker-compose.yml to those
    that users get. Raises `ReleaseRefused`.
    """
    text = artifacts.run("git", "show", f"v{version}:{artifacts.COMPOSE}", cwd=source)
    (made / artifacts.COMPOSE).write_text(compose_file(text, images, version), encoding="utf-8")
    artifacts.write_checksums(made)


def try_out(
    client: docker.APIClient,
    made: Path,
    folder: Path,
    version: str,
    images: dict[str, str],
    wanted: Wanted,
) -> None:
    """Try the wheel and the Compose file in `made`, in new folders below `folder`.

    In a dry run with a registry, the images are pushed there first, and Compose pulls them. Raises
    `ReleaseRefused` if something does not work.
    """
    (wheel,) = made.glob("*.whl")
    trial.try_wheel(wheel, folder, version)
    if not (wanted.is_dry and wanted.registry):
        trial.try_compose(made, folder / "compose")
        return
    pushed = artifacts.push_images(client, images, wanted.registry)
    tagged = [f"{registry.repository_of(pushed[name])}:{registry.tag_of(name)}" for name in pushed]
    artifacts.remove_images(client, [*pushed.values(), *tagged])  # for Compose to pull them
    scratch = made.parent / "clone"  # the clone of the release is beside its files
    write_compose_file(scratch, made, pushed_by_name(pushed), version)
    try:
        trial.try_compose(made, folder / "compose")
    finally:
        artifacts.remove_images(client, pushed.values())


def pushed_by_name(pushed: dict[str, str]) -> dict[str, str]:
    """Return the images' names with digests, by their names in docker-compose.yml.

    `pushed` has them by their local names, which differ only in the tag.
    """
    return {f"{name.partition(':')[0]}:latest": digest for name, digest in pushed.items()}


def take_over(root: Path, scratch: Path, made: Path, version: str) -> None:
    """Give the checkout `root` the commit and the tag of the clone, and copy the files in `made` to `dist/`.

    Raises:
        ReleaseRefused: the checkout has changed in the meantime.
    """
    git = partial(artifacts.run, "git", cwd=root)
    target, part = root / "dist" / version, root / "dist" / f".{version}.part"
    for leftover in (target, part):  # of a release that was taken back, or broken off
        shutil.rmtree(leftover, ignore_errors=True)
    # The files have another name until all is done; what may fail comes first.
    shutil.copytree(made, part)
    git("fetch", "--quiet", "--no-tags", scratch, "HEAD")
    git("merge", "--quiet", "--ff-only", "FETCH_HEAD")
    git("fetch", "--quiet", "--no-tags", scratch, f"refs/tags/v{version}:refs/tags/v{version}")
    part.rename(target)


def push(root: Path, version: str | None, to: str | None) -> None:
    """Push the images of a release to the registry `to`, and write their digests into its Compose file.

    `root` is the checkout in which the release was made.

    Raises:
        ReleaseRefused: there is no such release here, or the registry does not take them.
    """
    if not version or not to:
        raise ReleaseRefused("Say which and where to: 'make release-push VERSION=0.2.0 REGISTRY=ghcr.io/me'.")
    made = root / "dist" / version
    if not (made / artifacts.COMPOSE).is_file():
        raise ReleaseRefused(f"There is no dist/{version}: 'make release VERSION={version}' makes it.")
    with engine() as client:
        pushed = artifacts.push_images(client, {name: f"{name}:{version}" for name in IMAGES}, to)
    write_compose_file(root, made, pushed_by_name(pushed), version)
    print(f"{made / artifacts.COMPOSE} names the images by their digests now.")


if __name__ == "__main__":
    sys.exit(main())
