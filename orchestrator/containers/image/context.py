"""The build context of the agent image. The same list of files is hashed and sent to the engine."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.domain.errors import ImageNotBuilt

DOCKERFILE = "container/Dockerfile"
CERTIFICATES = "container/certificates"
"""Folder in the build context with the certificate authorities that the image trusts."""
HOST_CERTIFICATES = f"{CERTIFICATES}/host"
"""Folder in it for copies of this machine's certificates.

`make certificates` copies them into the same folder of the repository, for builds by Docker Compose.
"""
HOST_AUTHORITIES = Path("/usr/local/share/ca-certificates")
"""Folder with the certificate authorities that were added to this machine."""


@dataclass(frozen=True, slots=True)
class ImageSources:
    """The two folders from which the agent image is built."""

    runner: Path
    """The package `agent_runner`."""
    container: Path
    """The folder `container`, with the Dockerfile, the list of libraries and the optional layers."""

    @classmethod
    def below(cls, root: Path) -> ImageSources:
        """Return the source folders of a clone of the repository, whose top folder is `root`."""
        return cls(runner=root / "agent_runner", container=root / "container")

    def files(self) -> dict[str, Path]:
        """Return the source files by their names in the build context, sorted by name.

        Bytecode, hidden files, links and this machine's certificates are left out.

        Raises:
            ImageNotBuilt: there is no Dockerfile.
        """
        if not (self.container / "Dockerfile").is_file():
            raise ImageNotBuilt(f"There is no Dockerfile in {self.container}: install Andy again.")
        by_name: dict[str, Path] = {}
        for top, folder in (("agent_runner", self.runner), ("container", self.container)):
            for path in folder.rglob("*"):
                name = f"{top}/{path.relative_to(folder).as_posix()}"
                if path.is_file() and not path.is_symlink() and not _is_left_out(name):
                    by_name[name] = path
        return dict(sorted(by_name.items()))

    def hash(self) -> str:
        """Return a hash of the source files' names and contents: 16 hex digits, the same on every machine.

        Raises:
            ImageNotBuilt: there is no Dockerfile, or a file cannot be read.
        """
        digest = hashlib.sha256()
        for name, path in self.files().items():
            content = _read(path)
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()[:16]


def _is_left_out(name: str) -> bool:
    """Return whether a file of the source folders is left out of the build context.

    Hidden files, bytecode and this machine's certificates are. `name` is the file's path in the context.
    """
    is_hidden = any(part == "__pycache__" or part.startswith(".") for part in name.split("/"))
    return is_hidden or name.startswith(f"{HOST_CERTIFICATES}/")


def build_context(sources: ImageSources, authorities: Path = HOST_AUTHORITIES) -> io.BytesIO:
    """Return the files of `sources` and the host's certificate authorities (`authorities/**/*.crt`) as a tar.

    Owner, mode and time of each file are fixed. Otherwise files with equal content could miss the engine's
    cache, and a strict umask of this machine would apply to files in the image.

    Raises:
        ImageNotBuilt: there is no Dockerfile, or a file cannot be read.
    """
    files = sources.files()
    for path in authorities.rglob("*.crt"):
        try:
            is_file = path.is_file()  # False for a link to a removed file, which this machine ignores, too
        except OSError as error:  # a link into a folder that this user cannot enter
            raise _unreadable(path, error) from error
        if is_file:
            files[f"{HOST_CERTIFICATES}/{path.relative_to(authorities).as_posix()}"] = path
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        # `docker build` and Compose send an entry for each folder, too. The Dockerfile copies the folder of
        # certificates first. Without its entries, the engine's cache would not recognise that copy as the
        # same, and would build everything again.
        _add_folder(tar, CERTIFICATES)
        for folder in _folders_below(CERTIFICATES, files):
            _add_folder(tar, folder)
        _add_files(tar, files.items())
    packed.seek(0)
    return packed


def _folders_below(top: str, names: Iterable[str]) -> list[str]:
    """Return every folder under `top` that contains one of `names`, outer ones first."""
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    return sorted(folder for folder in folders if folder.startswith(f"{top}/"))


def _add_folder(tar: tarfile.TarFile, name: str) -> None:
    """Add a folder, with the mode 755, to the tar."""
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(member)


def _add_files(tar: tarfile.TarFile, files: Iterable[tuple[str, Path]]) -> None:
    """Add files, as pairs of name and path, to the tar in the order of their names, with the mode 644.

    Raises:
        ImageNotBuilt: a file cannot be read.
    """
    for name, path in sorted(files):
        content = _read(path)
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o644
        tar.addfile(member, io.BytesIO(content))


def _read(path: Path) -> bytes:
    """Return the content of a file of the build context.

    Raises:
        ImageNotBuilt: it cannot be read; the text has the fix.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ImageNotBuilt:
    """Return the error for a file of the build context that cannot be read, with the fix."""
    return ImageNotBuilt(
        f"{path}, which belongs into the image, cannot be read ({error.strerror}): make it readable,"
        " or remove it."
    )
