"""Write the parts of the documentation that are made from the code: `make docs`, with `--check` only compare.

A part stands between two markers, `<!-- made: NAME -->` and `<!-- end -->`. Text outside them is by hand.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import get_args, get_origin

from pydantic.fields import FieldInfo

from agent_runner.wire.times.forms import FORMS
from agent_runner.wire.times.model import Where
from orchestrator.cli import main as cli
from orchestrator.cli.commands import INTENTS
from orchestrator.context.tokens import START_FACTOR
from orchestrator.home import settings
from orchestrator.proxies.model import credentials
from orchestrator.proxies.model.token_usage import AS_OF, ParsedUsage, Prices

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
    """Return a Markdown table of all settings: name, default, accepted values, meaning."""
    rows = [
        (f"`{name.upper()}`", _default(field), _takes(field), field.description or "")
        for name, field in settings.Settings.model_fields.items()
    ]
    return _table(("name", "default", "takes", "meaning"), rows)


def credentials_table() -> str:
    """Return a Markdown table of the credentials: name and meaning."""
    return _table(("name", "meaning"), [(f"`{name}`", text) for name, text in CREDENTIALS.items()])


def commands() -> str:
    """Return the help of all commands as Markdown, as `--help` prints it."""
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
    """Return a Markdown table of the forms of times that are read, with examples in both languages."""
    rows = []
    for form in FORMS:
        examples = [example for shape in form.shapes for example in shape.examples]
        korean = [example for example in examples if re.search(r"[가-힣]", example)]
        english = [example for example in examples if example not in korean]
        where = WHERE[form.where]
        shown = [", ".join(f"`{example}`" for example in listed) for listed in (english, korean)]
        rows.append((form.name, *shown, f"{form.meaning}.{where}"))
    return _table(("form", "English", "Korean", "meaning"), rows)


def time_figures() -> str:
    """Return a Markdown table that counts how the phrases of each collection of times are read."""
    corpora = _times_corpora()
    return _table(corpora.HEAD, list(corpora.rows()))


def time_differences() -> str:
    """Return a Markdown table of the phrases that are read otherwise than elsewhere, with the reasons."""
    decided = _times_corpora().duckling()["decided"]
    return _table(("phrase", "read as"), [(f"`{phrase}`", reason) for phrase, reason in decided.items()])


def _times_corpora() -> ModuleType:
    """Import the module of the tests that has the collections of phrases, and return it."""
    sys.path.insert(0, str(DOCS.parent / "tests" / "understanding"))
    return importlib.import_module("times_corpora")


def packages_table() -> str:
    """Return a Markdown table of all packages: their purpose and the file to start with.

    Both are from the package's docstring: its first sentence, and the file in "Start with …".
    """
    rows = []
    for folder in architecture.packages():
        module = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
        text = " ".join((ast.get_docstring(module) or "").split())
        start = re.search(r"Start with `([\w/]+\.py)`", text)
        purpose = re.split(r"(?<=\.) ", text)[0].removesuffix(".")
        shown = folder.relative_to(DOCS.parent)
        rows.append((f"`{shown}/`", purpose, f"`{start[1]}`" if start else ""))
    return _table(("package", "what it is for", "start with"), rows)


def licences_table() -> str:
    """Return a Markdown table of the locked dependencies with their licences."""
    return _table(("package", "used in", "licence"), list(licences.licence_rows()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CostExample:
    """A home whose month is priced on docs/costs.md. Counts are those of a day."""

    name: str
    turns_after_a_pause: int
    """Turns for which the service has nothing in its cache any more."""
    follow_ups: int
    pictures: int = 0
    worker_looks: int = 0
    loop_looks: int = 0


COST_EXAMPLES = (
    CostExample(name="One person", turns_after_a_pause=5, follow_ups=3),
    CostExample(
        name="A family, three groups", turns_after_a_pause=15, follow_ups=15, pictures=2, worker_looks=6
    ),
    CostExample(
        name="The same family, the loop on in one group",
        turns_after_a_pause=15, follow_ups=15, pictures=2, worker_looks=6, loop_looks=72,
    ),
    CostExample(
        name="A club, ten groups", turns_after_a_pause=60, follow_ups=90, pictures=10, worker_looks=24
    ),
)  # fmt: skip
COST_MODELS = ("claude-haiku-4-5", "claude-sonnet-4-6", "claude-opus-4-6")
COST_DAYS = 30
"""Days of the month whose costs are estimated."""
CONVERSATION, MESSAGE, RESULT, ANSWER, PICTURE = 10_000, 100, 300, 150, 1_500
"""Tokens that are assumed of a conversation so far, a message, a tool's result, an answer and a picture."""
WORKER_REQUESTS = 3
"""Requests to the model each time that a dashboard's worker looks."""
FIRST_REQUEST, WORKER_REQUEST = "of a chat in `main`, in all", "of a worker's cycle"
"""Rows of the table of docs/prompt.md that have the measured counts."""
MEASURED, COUNTING = "prompt.md#what-a-turn-costs", "decisions/0009-tokens-are-counted-offline.md"


def month_costs() -> str:
    """Return a Markdown table that estimates what a month costs in each of the examples, by model."""
    rows = [
        (
            example.name,
            f"{example.turns_after_a_pause} and {example.follow_ups}",
            *(str(count) for count in (example.pictures, example.worker_looks, example.loop_looks)),
            *(f"${_month_usd(example, model):,.0f}" for model in COST_MODELS),
        )
        for example in COST_EXAMPLES
    ]
    head = ("home", "questions a day: after a pause, and right after another", "pictures a day")
    return _table((*head, "looks of the worker", "looks of the loop", *COST_MODELS), rows)


def cost_assumptions() -> str:
    """Return a Markdown table of the token counts and prices from which the costs of a month are computed."""
    prices = Prices()
    counts = (
        ("instructions and tools of a request", _measured(FIRST_REQUEST), f"[measured]({MEASURED})"),
        ("a worker's request", _measured(WORKER_REQUEST), "measured there, too"),
        ("the conversation so far", CONVERSATION, "assumed, on average"),
        ("a message, a tool's result, an answer", f"{MESSAGE}, {RESULT}, {ANSWER}", "assumed"),
        ("a picture", PICTURE, "the service's rule"),
        ("tokens of Claude for one that is counted here", START_FACTOR, f"[decision 9]({COUNTING})"),
    )  # fmt: skip
    rows = [
        (name, f"{count:,}" if isinstance(count, int) else f"{count}", source)
        for name, count, source in counts
    ]
    for model in COST_MODELS:
        price = prices.of(model)
        assert price is not None
        rows.append(
            (
                f"`{model}`, a million tokens",
                # Prices are in billionths of a dollar for one token.
                f"${price.input / 1000:g} in, ${price.output / 1000:g} out",
                f"list price of {AS_OF}",
            )
        )
    rows.append(
        ("the cache", "× 1.25 to write, × 0.1 to read", "of the price of input; it holds five minutes")
    )
    return _table(("what", "tokens or price", "from"), rows)


def _month_usd(home: CostExample, model: str) -> float:
    """Return the estimated costs of a month in dollars, for a home that uses this model.

    A turn is two requests: the question, and the result of a tool. What the service has in its cache is read
    (`read`), the rest is written to the cache (`written`).
    """
    instructions, worker = _measured(FIRST_REQUEST), _measured(WORKER_REQUEST)
    start = instructions + CONVERSATION + MESSAGE
    first = [_request(written=start), _request(read=start, written=RESULT + ANSWER)]
    later = [_request(read=start, written=MESSAGE), _request(read=start, written=RESULT + ANSWER)]
    looks = [
        _request(written=worker),
        *[_request(read=worker, written=RESULT + ANSWER)] * (WORKER_REQUESTS - 1),
    ]
    picture = [_request(written=PICTURE, answer=0)]
    day = (
        first * (home.turns_after_a_pause + home.loop_looks)
        + later * home.follow_ups
        + picture * home.pictures
        + looks * home.worker_looks
    )
    nano_usd = sum(Prices().cost_of(replace(request, model=model)).nano_usd or 0 for request in day)
    return COST_DAYS * nano_usd / 1_000_000_000


def _request(*, read: int = 0, written: int, answer: int = ANSWER) -> ParsedUsage:
    """Return the usage of one request, in tokens as Claude counts them.

    Of the tokens as they are counted here, `read` are in the service's cache, `written` are added to it, and
    `answer` are those of the answer.
    """
    return ParsedUsage(
        model=None,
        input_tokens=0,
        cache_write_hour_tokens=0,
        is_whole=True,
        cache_read_tokens=round(read * START_FACTOR),
        cache_write_tokens=round(written * START_FACTOR),
        output_tokens=round(answer * START_FACTOR),
    )


def _measured(row: str) -> int:
    """Return the measured count of tokens in a row of the table of docs/prompt.md, named by its beginning."""
    text = (DOCS / "prompt.md").read_text(encoding="utf-8")
    match = re.search(rf"\*\*{re.escape(row)}[^|]*\| [\d,]+ \| ([\d,]+) \|", text)
    assert match is not None, row
    return int(match[1].replace(",", ""))


def intents() -> str:
    """Return a Markdown table of what people may want, and the command or setting that does it."""
    rows = []
    for intent in INTENTS:
        # A command in quotes becomes code, and the name of a page a link to it.
        answer = re.sub(r"'([^']+)'", r"`\1`", intent.answer)
        rows.append((intent.purpose, re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", answer)))
    return _table(("to …", "do this"), rows)


PARTS = {
    "month_costs": month_costs,
    "cost_assumptions": cost_assumptions,
    "intents": intents,
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
    """Return the text of a page with each part between markers made anew.

    Raises `KeyError` for the name of an unknown part.
    """
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part['name']]()}{part[3]}", text)


def _default(field: FieldInfo) -> str:
    """Return the default of a setting, as the table of settings shows it."""
    if field.default_factory is dict:
        return "none"
    if field.default_factory is not None:
        return "this machine's"
    return "none" if field.default is None else f"`{field.default}`"


def _takes(field: FieldInfo) -> str:
    """Return the values that a setting accepts, in words, as the table of settings shows them."""
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
    """Return the bound of a setting, `ge` for the least value or `le` for the most; empty if it has none."""
    bounds: list[int] = [getattr(limit, name) for limit in field.metadata if hasattr(limit, name)]
    return f"{bounds[0]}" if bounds else ""


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table with these headings and rows of cells."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main(*, is_check: bool) -> int:
    """Write the generated parts of all pages and the picture anew; print the names of those that change.

    With `is_check`, nothing is written. Returns how many change.
    """
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
