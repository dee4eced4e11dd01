"""Write the parts of the documentation that are made from the code: `make docs`, with `--check` only compare.

A part stands between two markers, `<!-- made: NAME -->` and `<!-- end -->`. Text outside them is by hand.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args, get_origin

from pydantic.fields import FieldInfo

from agent_runner.wire.times.forms import FORMS
from agent_runner.wire.times.model import Where
from orchestrator.cli import main as cli
from orchestrator.domain import settings
from orchestrator.proxies.model import credentials

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docs import architecture, licences  # noqa: E402 - this file is also run as a program

PART = re.compile(r"(<!-- made: (?P<name>\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)

CREDENTIALS = {
    "ANTHROPIC_API_KEY": "A key of the model service. Goes before the two below.",
    "CLAUDE_CODE_OAUTH_TOKEN": "A token of a Claude subscription.",
    "ANTHROPIC_AUTH_TOKEN": "A bearer token, as gateways take it.",
    "ANTHROPIC_BASE_URL": (
        f"Another service that speaks the same API. Default `{credentials.DEFAULT_UPSTREAM}`."
    ),
}


def settings_table() -> str:
    """List every field of `Settings`: name, default, what it takes, meaning."""
    rows = [
        (f"`{name.upper()}`", _default(field), _takes(field), field.description or "")
        for name, field in settings.Settings.model_fields.items()
    ]
    return _table(("name", "default", "takes", "meaning"), rows)


def credentials_table() -> str:
    return _table(("name", "meaning"), [(f"`{name}`", text) for name, text in CREDENTIALS.items()])


def commands() -> str:
    """Everything that `--help` tells, all commands on one page."""
    from cyclopts.docs.markdown import generate_markdown_docs

    text = generate_markdown_docs(
        cli.app,
        heading_level=2,
        flatten_commands=True,
        generate_toc=False,
        no_root_title=True,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


WHERE = {
    Where.ANYWHERE: "",
    Where.START: " Only at the start of what is said.",
    Where.WHOLE: " Only where nothing else is said.",
}


def times_table() -> str:
    """List the forms of times that are read, with examples in both languages."""
    rows = []
    for form in FORMS:
        examples = [one for shape in form.shapes for one in shape.examples]
        korean = [one for one in examples if re.search(r"[가-힣]", one)]
        english = [one for one in examples if one not in korean]
        where = WHERE[form.where]
        shown = [", ".join(f"`{one}`" for one in some) for some in (english, korean)]
        rows.append((form.name, *shown, f"{form.meaning}.{where}"))
    return _table(("form", "English", "Korean", "meaning"), rows)


def time_figures() -> str:
    """Count how the phrases of each corpus of times are read."""
    corpora = _times_corpora()
    return _table(corpora.HEAD, list(corpora.rows()))


def time_differences() -> str:
    """List the phrases of the corpora that are read otherwise on purpose, with the reason."""
    decided = _times_corpora().duckling()["decided"]
    return _table(("phrase", "read as"), [(f"`{phrase}`", reason) for phrase, reason in decided.items()])


def _times_corpora() -> ModuleType:
    sys.path.insert(0, str(DOCS.parent / "tests" / "understanding"))
    return importlib.import_module("times_corpora")


def packages_table() -> str:
    """List every package: what its docstring says it is for, and the file to start with."""
    rows = []
    for folder in architecture.packages():
        module = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
        text = " ".join((ast.get_docstring(module) or "").split())
        start = re.search(r"Start with `([\w/]+\.py)`", text)
        said = re.split(r"(?<=\.) ", text)[0].removesuffix(".")
        shown = folder.relative_to(DOCS.parent)
        rows.append((f"`{shown}/`", said, f"`{start[1]}`" if start else ""))
    return _table(("package", "what it is for", "start with"), rows)


def licences_table() -> str:
    """List every locked dependency with its licence."""
    return _table(("package", "used in", "licence"), list(licences.licence_rows()))


PARTS = {
    "licences": licences_table,
    "packages": packages_table,
    "settings": settings_table,
    "credentials": credentials_table,
    "commands": commands,
    "times": times_table,
    "time_figures": time_figures,
    "time_differences": time_differences,
}


def regenerated(text: str) -> str:
    """Return `text` with each part between markers made anew. Raises `KeyError` for an unknown name."""
    return PART.sub(lambda found: f"{found[1]}\n{PARTS[found['name']]()}{found[3]}", text)


def _default(field: FieldInfo) -> str:
    if field.default_factory is dict:
        return "none"
    if field.default_factory is not None:
        return "this machine's"
    return "none" if field.default is None else f"`{field.default}`"


def _takes(field: FieldInfo) -> str:
    choices = get_args(field.annotation)
    if choices and all(isinstance(choice, str) for choice in choices):
        return ", ".join(f"`{choice}`" for choice in choices)
    if field.annotation is bool:
        return "`true`, `false`"
    if get_origin(field.annotation) is dict:
        return "a table, or JSON"
    if field.annotation is not int:
        return "text"
    least, most = _bound(field, "ge"), _bound(field, "le")
    return f"{least} to {most}" if most else f"{least} or more"


def _bound(field: FieldInfo, name: str) -> str:
    bounds: list[int] = [getattr(each, name) for each in field.metadata if hasattr(each, name)]
    return f"{bounds[0]}" if bounds else ""


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main(*, is_check: bool) -> int:
    """Write the pages anew, or with `is_check` only tell which would change. Returns how many."""
    changed = 0
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = regenerated(before)
        if after != before:
            changed += 1
            sys.stdout.write(f"{page.name} {'is out of date' if is_check else 'is written anew'}.\n")
            if not is_check:
                page.write_text(after, encoding="utf-8")
    picture = DOCS / "architecture.svg"
    drawn = architecture.drawing()
    if not picture.exists() or picture.read_text(encoding="utf-8") != drawn:
        changed += 1
        sys.stdout.write(f"{picture.name} {'is out of date' if is_check else 'is written anew'}.\n")
        if not is_check:
            picture.write_text(drawn, encoding="utf-8")
    return changed


if __name__ == "__main__":
    is_check = "--check" in sys.argv
    changed = main(is_check=is_check)
    sys.exit(is_check and changed > 0)
