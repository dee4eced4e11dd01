"""The build context of the agent image: one list of files, for its hash and for the engine."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from orchestrator.domain.errors import ImageNotBuilt

SOURCES = ("agent_runner", "container")
DOCKERFILE = "container/Dockerfile"
CERTIFICATES = "container/certificates"
TAKEN_CERTIFICATES = f"{CERTIFICATES}/host"
"""The folder in the build context for this machine's certificates, which `make certificates` also fills."""
HOST_AUTHORITIES = Path("/usr/local/share/ca-certificates")


def source_files(project_root: Path) -> list[str]:
    """List the files the image is made of, as sorted POSIX paths below `project_root`.

    Bytecode, hidden files, links and this machine's certificates are left out.

    Raises:
        ImageNotBuilt: this is no checkout of Andy.
    """
    if not (project_root / DOCKERFILE).is_file():
        raise ImageNotBuilt(f"There is no {DOCKERFILE} in {project_root}: build from a checkout of Andy.")
    found = (path for source in SOURCES for path in (project_root / source).rglob("*"))
    return sorted(
        path.relative_to(project_root).as_posix()
        for path in found
        if path.is_file() and not path.is_symlink() and not _is_litter(path.relative_to(project_root))
        if not path.is_relative_to(project_root / TAKEN_CERTIFICATES)
    )


def _is_litter(path: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)


def source_hash(project_root: Path) -> str:
    """Hash names and contents of `source_files`: 16 hex digits, the same on every machine.

    Raises like `source_files`.
    """
    digest = hashlib.sha256()
    for name in source_files(project_root):
        content = (project_root / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def build_context(project_root: Path, authorities: Path = HOST_AUTHORITIES) -> io.BytesIO:
    """Pack `source_files` and the certificate authorities of the host (`authorities/**/*.crt`) as a tar.

    Owner, mode and time are the same everywhere: they neither miss the engine's cache nor carry a strict
    umask into the image.

    Raises like `source_files`.
    """
    files = {name: project_root / name for name in source_files(project_root)}
    for path in authorities.rglob("*.crt"):
        files[f"{TAKEN_CERTIFICATES}/{path.relative_to(authorities).as_posix()}"] = path
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        # With its folders, as other builders pack it: an engine that has built the one has the other.
        _add_folder(tar, CERTIFICATES)
        for folder in _folders_below(CERTIFICATES, files):
            _add_folder(tar, folder)
        _add_files(tar, files.items())
    packed.seek(0)
    return packed


def _folders_below(top: str, names: Iterable[str]) -> list[str]:
    """Every folder under `top` that one of `names` lies in, outer ones first."""
    found = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    return sorted(folder for folder in found if folder.startswith(f"{top}/"))


def _add_folder(tar: tarfile.TarFile, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(member)


def _add_files(tar: tarfile.TarFile, files: Iterable[tuple[str, Path]]) -> None:
    for name, path in sorted(files):
        content = path.read_bytes()
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o644
        tar.addfile(member, io.BytesIO(content))
