"""What the image is made of, and how a stale one is told."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from docker.utils import exclude_paths

from orchestrator.containers.image.base import PYTHON_IMAGE
from orchestrator.containers.image.context import (
    DOCKERFILE,
    HOST_CERTIFICATES,
    ImageSources,
    build_context,
)
from orchestrator.containers.image.progress import PHASES
from orchestrator.domain.errors import ImageNotBuilt

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("container/Dockerfile", "container/requirements.lock", "agent_runner/__init__.py"):
        write(tmp_path / "project" / name, name)
    return tmp_path / "project"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def unpacked(project: Path, authorities: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=build_context(ImageSources.below(project), authorities)) as tar:
        return {member.name: member for member in tar}


def test_the_hash_does_not_depend_on_where_the_project_lies(project: Path, tmp_path: Path) -> None:
    moved = project.rename(tmp_path / "elsewhere")
    before = ImageSources.below(moved).hash()
    assert ImageSources.below(moved.rename(project)).hash() == before
    assert len(before) == 16


@pytest.mark.parametrize(
    "name", ["agent_runner/__init__.py", "container/requirements.lock", "container/Dockerfile"]
)
def test_a_changed_source_changes_the_hash(project: Path, name: str) -> None:
    before = ImageSources.below(project).hash()
    (project / name).write_text("x" * len(name))
    assert ImageSources.below(project).hash() != before


def test_a_renamed_source_changes_the_hash(project: Path) -> None:
    before = ImageSources.below(project).hash()
    (project / "agent_runner" / "__init__.py").rename(project / "agent_runner" / "other.py")
    assert ImageSources.below(project).hash() != before


def test_a_byte_moved_from_one_file_to_the_next_changes_the_hash(project: Path) -> None:
    first, second = project / "agent_runner" / "a.py", project / "agent_runner" / "b.py"
    first.write_text("xy")
    second.write_text("z")
    before = ImageSources.below(project).hash()
    first.write_text("x")
    second.write_text("yz")
    assert ImageSources.below(project).hash() != before


def test_litter_links_and_the_rest_of_the_project_do_not_count(project: Path, tmp_path: Path) -> None:
    before = ImageSources.below(project).hash()
    write(project / "agent_runner" / "__pycache__" / "a.pyc", "bytecode")
    write(project / "agent_runner" / ".a.py.swp", "an editor's")
    write(project / "orchestrator" / "a.py", "the host's")
    write(tmp_path / "secret", "not ours")
    (project / "agent_runner" / "link.py").symlink_to(tmp_path / "secret")
    assert ImageSources.below(project).hash() == before


def test_sources_without_a_dockerfile_are_refused_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ImageNotBuilt, match="install Andy again"):
        ImageSources.below(tmp_path).hash()


def test_the_context_has_the_sources_and_the_hosts_authorities_and_nothing_else(
    project: Path, tmp_path: Path
) -> None:
    write(tmp_path / "authorities" / "company" / "root.crt", "PEM")
    write(tmp_path / "authorities" / "root.key", "a secret")
    assert set(unpacked(project, tmp_path / "authorities")) == {
        *ImageSources.below(project).files(),
        "container/certificates",
        "container/certificates/host",
        "container/certificates/host/company",
        "container/certificates/host/company/root.crt",
    }


def test_an_authority_that_cannot_be_read_is_named_with_the_fix(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "authorities" / "ours.crt", "ours")
    (tmp_path / "authorities" / "removed.crt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "authorities" / "folder.crt").mkdir()
    names = [Path(name).name for name in unpacked(project, tmp_path / "authorities")]
    assert [name for name in names if name.endswith(".crt")] == ["ours.crt"], "as for the machine itself"
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "ours.crt":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ImageNotBuilt, match=r"ours\.crt.*cannot be read.*readable"):
        unpacked(project, tmp_path / "authorities")


def test_an_authority_in_a_folder_that_cannot_be_entered_is_named_with_the_fix(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "authorities" / "ours.crt", "ours")
    stat = Path.stat

    def refuse(path: Path, **more: bool) -> os.stat_result:
        if path.name == "ours.crt":
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ImageNotBuilt, match=r"ours\.crt.*cannot be read.*readable"):
        unpacked(project, tmp_path / "authorities")


def test_the_context_does_not_carry_a_strict_umask_or_an_owner(project: Path, tmp_path: Path) -> None:
    (project / "agent_runner" / "__init__.py").chmod(0o600)
    member = unpacked(project, tmp_path / "none")["agent_runner/__init__.py"]
    assert (member.mode, member.uid, member.gid, member.mtime) == (0o644, 0, 0, 0)


def test_the_context_holds_nothing_that_dockerignore_refuses() -> None:
    patterns = (PROJECT / ".dockerignore").read_text().splitlines()
    allowed = exclude_paths(str(PROJECT), [line for line in patterns if line and line[0] != "#"])
    assert set(ImageSources.below(PROJECT).files()) <= set(allowed)


def test_the_dockerfile_has_the_same_default_base_and_the_phases_that_are_told() -> None:
    lines = (PROJECT / "container" / "Dockerfile").read_text().splitlines()
    assert f"ARG BASE_IMAGE={PYTHON_IMAGE}" in lines
    assert [line.split(" AS ")[1] for line in lines if line.startswith("FROM ")] == list(PHASES)


def instructions(dockerfile: str) -> list[str]:
    """Each with its continued lines, without comments."""
    lines = [line for line in (PROJECT / dockerfile).read_text().splitlines() if line and line[0] != "#"]
    return "\n".join(lines).replace("\\\n", "").splitlines()


def shared(dockerfile: str) -> list[str]:
    """What comes before the stages of an image's own."""
    found = instructions(dockerfile)
    return found[: found.index("FROM packages AS dependencies")]


def test_an_engine_that_built_one_image_has_the_packages_of_the_other() -> None:
    assert shared("Dockerfile") == shared(DOCKERFILE)
    assert any("pip install" in line for line in shared(DOCKERFILE))


def test_the_orchestrators_packages_have_those_of_the_agents_in_the_same_version() -> None:
    def locked(path: str) -> set[str]:
        lines = (PROJECT / path).read_text().splitlines()
        return {line.split()[0] for line in lines if line and line[0] not in " #"}

    of_skills = {"pypdf", "resvg-py"}  # which no orchestrator has
    shared = {name for name in locked("container/requirements.lock") if name.split("==")[0] not in of_skills}
    assert shared <= locked("requirements.lock")


@pytest.mark.parametrize("dockerfile", ["Dockerfile", DOCKERFILE])
def test_a_build_says_what_takes_long(dockerfile: str) -> None:
    long = [line for line in instructions(dockerfile) if re.search(r"(apt-get|pip) install", line)]
    assert len(long) >= 3
    assert [line for line in long if 'echo "Installing ' not in line] == []


def test_compose_takes_this_machines_authorities_as_a_build_of_ours_does(
    project: Path, tmp_path: Path
) -> None:
    authorities, taken = tmp_path / "authorities", project / HOST_CERTIFICATES
    write(authorities / "company" / "root.crt", "PEM")
    write(authorities / "root.key", "a secret")
    write(tmp_path / "elsewhere.crt", "by a link")
    (authorities / "linked.crt").symlink_to(tmp_path / "elsewhere.crt")
    (authorities / "company").chmod(0o700)
    write(taken / "old.crt", "of another machine")
    before = ImageSources.below(project).hash()

    subprocess.run(
        ["make", "--file", PROJECT / "Makefile", "certificates", f"AUTHORITIES={authorities}"],
        cwd=project,
        check=True,
        capture_output=True,
    )

    packed = unpacked(project, authorities)
    found = {path.relative_to(project).as_posix(): path for path in taken.rglob("*")}
    assert set(found) == {name for name in packed if name.startswith(f"{HOST_CERTIFICATES}/")}
    assert {name: path.stat().st_mode & 0o777 for name, path in found.items()} == {
        name: packed[name].mode for name in found
    }
    assert ImageSources.below(project).hash() == before


def test_a_source_that_cannot_be_read_is_named_already_when_the_image_is_looked_at(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "container" / "broken.txt").write_text("gone")
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "broken.txt":
            raise OSError(5, "Input/output error", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ImageNotBuilt, match=r"broken\.txt.*cannot be read \(Input/output error\)"):
        ImageSources.below(project).hash()
