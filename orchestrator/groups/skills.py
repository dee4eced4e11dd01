"""Provide the skills of a group to its container: those that come with Andy, and the owner's in `skills/`.

A skill is a folder with a `SKILL.md`: when it is useful, then how to do it, perhaps with scripts. The model
gets only its name and description until it needs the rest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import structlog

from orchestrator.groups.settings import ConfigRefused

log = structlog.get_logger(__name__)

FOLDER = "skills"
SKILL = "SKILL.md"
PLUGIN = {"name": "andy", "description": "Skills of this assistant.", "version": "1.0.0"}
MAX_SKILLS = 50
MAX_FILES = 500
MAX_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _SkillFile:
    """A file of a skill: its path below the plugin, and its content."""

    place: str
    content: bytes


def available(home: Path) -> dict[str, Path]:
    """Return the folders of all skills by their names, at most `MAX_SKILLS`. Blocks.

    These are the skills that come with Andy and those in the home. One in the home replaces a shipped one of
    the same name.
    """
    shipped = Path(str(resources.files("orchestrator.groups"))) / "shipped_skills"
    paths = [*_skills_in(shipped), *_skills_in(home / FOLDER)]
    # Of two paths with one name, the dictionary has the later.
    return dict(sorted({path.name: path for path in paths}.items())[:MAX_SKILLS])


def check_known(home: Path, wanted: object) -> None:
    """Check that all skills in the list `wanted` exist. Blocks.

    A value that is no list is accepted here: it is validated with the other settings.

    Raises:
        ConfigRefused: one does not exist; the text names those that do.
    """
    known = available(home)
    # Entries of the list that are no text are left to that validation, too.
    names = [name for name in wanted if isinstance(name, str)] if isinstance(wanted, list) else []
    unknown = [name for name in names if name not in known]
    if unknown:
        shown_names = ", ".join(repr(name) for name in unknown)
        raise ConfigRefused(
            f"There is no skill {shown_names}: there are {', '.join(known)}. A skill of yours is a folder"
            f" with a {SKILL} in {home / FOLDER}."
        )


def make_plugin(home: Path, folder: str, wanted: tuple[str, ...] | None, *, is_in_use: bool) -> Path | None:
    """Copy the wanted skills of a group into a folder for its containers, and return the folder. Blocks.

    No container ever has the owner's own folder. If a skill has changed, there is a new copy. All other
    copies are deleted, unless containers of the group live that may use them (`is_in_use`). `wanted` are the
    names of the skills; None means all. Unknown names are logged and left out. If there are no files to copy,
    there is no new copy, and None is returned.

    Raises:
        OSError: a skill cannot be read, or the home cannot be written.
    """
    known = available(home)
    chosen = known if wanted is None else {name: known[name] for name in wanted if name in known}
    if unknown := [name for name in wanted or () if name not in known]:
        log.warning("skills.unknown", group=folder, names=unknown, known=list(known))
    copies = home / "data" / FOLDER / folder
    files = list(_files_of(chosen))
    plugin = _write_plugin(copies, files) if files else None
    if not is_in_use:
        _remove_others(copies, plugin)
    return plugin


def _skills_in(folder: Path) -> Iterator[Path]:
    """Yield the skills in a folder: the folders in it that have a `SKILL.md`; none if it is missing."""
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if (path / SKILL).is_file())


def _files_of(chosen: Mapping[str, Path]) -> Iterator[_SkillFile]:
    """Yield the files of skills, without links and hidden files; `chosen` has the skills' folders by name.

    Raises `OSError` if a file cannot be read, or the files are too many or too large.
    """
    files, size = 0, 0
    for name, skill in chosen.items():
        for path in sorted(skill.rglob("*")):
            inside = path.relative_to(skill)
            if any(part.startswith(".") or part == "__pycache__" for part in inside.parts):
                continue
            if path.is_symlink() or not path.is_file():
                continue
            files += 1
            # Checked before the file is read: it may be larger than the memory.
            size += path.stat().st_size
            if files > MAX_FILES or size > MAX_BYTES:
                raise OSError(f"the skills are above {MAX_FILES} files or {MAX_BYTES:,} bytes, at {path}")
            yield _SkillFile(place=f"skills/{name}/{inside.as_posix()}", content=path.read_bytes())


def _write_plugin(folder: Path, files: list[_SkillFile]) -> Path:
    """Write the files of skills, as a plugin, to a folder named by their digest; return that folder.

    If there is such a folder already, it is returned as it is. `folder` has the copies of the group.
    """
    digest = hashlib.sha256()
    for file in files:
        # The name of a file need not be UTF-8, as in an archive of another system.
        head = f"{file.place}\0{len(file.content)}\0".encode("utf-8", "surrogateescape")
        digest.update(head + file.content)
    target = folder / digest.hexdigest()[:16]
    if not target.is_dir():
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as partial:
            plugin = Path(partial) / "plugin"
            manifest = _SkillFile(place=".claude-plugin/plugin.json", content=json.dumps(PLUGIN).encode())
            for file in (*files, manifest):
                _write(plugin, file)
            plugin.chmod(0o755)
            # Renamed when it is whole, so that no container ever gets half of the skills.
            try:
                plugin.rename(target)
            except OSError:
                # Another container of the group may start at the same time, with the same copy.
                if not target.is_dir():
                    raise
    return target


def _remove_others(copies: Path, current_copy: Path | None) -> None:
    """Delete all copies of skills in the folder `copies` but the current one; all if that is None. Blocks."""
    if copies.is_dir():
        for old in copies.iterdir():
            if old != current_copy:
                shutil.rmtree(old, ignore_errors=True)


def _write(plugin: Path, file: _SkillFile) -> None:
    """Write a file of a skill, with its folders, below `plugin`; every user can read them. Blocks."""
    path = plugin / file.place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    path.chmod(0o644)
    for parent in path.relative_to(plugin).parents:
        (plugin / parent).chmod(0o755)
