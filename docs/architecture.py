"""Draw the host's packages in their layers, with the imports between them, as SVG."""

from __future__ import annotations

import tomllib
from collections import Counter
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT, TOP = 960, 78, 132, 40, 16
"""Sizes in the picture's units: the picture's width, a layer's height, a box, and the margin at the top."""
GROUND = {"store", "domain", "base"}
"""Everything imports these, so lines to them would hide all others."""


def layers() -> list[list[str]]:
    """Return the host's packages by layer, the top layer first, as the import contract in `pyproject.toml`
    lists them.
    """
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    lines = next(contract["layers"] for contract in contracts if contract["containers"] == ["orchestrator"])
    return [[name.strip() for name in line.split("|")] for line in lines]


def packages() -> list[Path]:
    """Return the folders of all packages: the host's by layer, then the container's."""
    folders: list[Path] = []
    for line in layers():
        for name in line:
            folders += _below(ROOT / "orchestrator" / name)
    return folders + _below(ROOT / "agent_runner")


def _below(folder: Path) -> list[Path]:
    """Return a package's folder and those of all packages in it, sorted; empty if there is no such folder."""
    return sorted(init.parent for init in folder.rglob("__init__.py")) if folder.is_dir() else []


def drawing() -> str:
    """Return the picture as SVG: a box for each package, and a line for the imports of one by another."""
    graph = grimp.build_graph("orchestrator", cache_dir=None)
    modules = Counter(_package(name) for name in graph.modules if "." in name)
    arrows: Counter[tuple[str, str]] = Counter()
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            pair = (_package(importer), _package(imported))
            is_drawn = pair[1] not in GROUND or pair[0] in GROUND
            if pair[0] != pair[1] and "" not in pair and is_drawn:
                arrows[pair] += 1
    places = {
        name: (WIDTH * (place + 1) / (len(line) + 1), TOP + row * ROW)
        for row, line in enumerate(layers())
        for place, name in enumerate(line)
    }
    lines = [
        _arrow(places[importer], places[imported], count)
        for (importer, imported), count in sorted(arrows.items())
    ]
    boxes = [_box(name, place, modules[name]) for name, place in places.items()]
    height = TOP + len(layers()) * ROW
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
            ' font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def _package(module: str) -> str:
    """Return the name of a module's package under `orchestrator`; an empty text for the root itself."""
    return module.split(".")[1] if "." in module else ""


def _arrow(start: tuple[float, float], end: tuple[float, float], count: int) -> str:
    """Return the SVG of a line from the box at `start` to the box at `end`, thicker for more imports.

    A place has the x of the box's middle and the y of its top; `count` is the number of imports.
    """
    (x1, y1), (x2, y2) = start, end
    # A long line in one column goes round the boxes between.
    beside = 120 if x1 == x2 and y2 - y1 > ROW else 0
    y1 += BOX_HEIGHT
    middle = f"{(y1 + y2) / 2:.0f}"
    curve = f"M{x1:.0f} {y1:.0f} C{x1 + beside:.0f} {middle} {x2 + beside:.0f} {middle} {x2:.0f} {y2:.0f}"
    stroke = f'stroke="#5b7fa6" stroke-opacity="0.35" stroke-width="{min(1 + count / 8, 5):.1f}"'
    return f'<path d="{curve}" fill="none" {stroke}/>'


def _box(name: str, place: tuple[float, float], modules: int) -> str:
    """Return the SVG of a package's box with its name and number of modules.

    `place` has the x of the box's middle and the y of its top.
    """
    x, y = place
    size = "1 module" if modules == 1 else f"{modules} modules"
    return (
        f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"'
        ' rx="6" fill="#f3f6fa" stroke="#33506e"/>'
        f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle" font-size="14">{escape(name)}</text>'
        f'<text x="{x:.0f}" y="{y + 33:.0f}" text-anchor="middle" font-size="10">{size}</text>'
    )
