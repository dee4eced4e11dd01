"""The console's texts are whole in both languages, and what it did not write itself is what it says it is."""

from __future__ import annotations

import ast
import hashlib
import re
import string
import tomllib
from typing import get_args

import pytest

from orchestrator.domain.errors import BadRequest
from orchestrator.home.settings import Settings
from orchestrator.reports.costs import By
from orchestrator.web.console import catalogue
from orchestrator.web.console.app import STATIC, find_pages
from orchestrator.web.console.catalogue import Catalogue, TextMissing, preferred_language
from orchestrator.web.console.page import TEMPLATES
from orchestrator.web.console.reasons import KEYS, key_of

CONSOLE = TEMPLATES.parent
IN_CODE = ("settings", "services", "reasons")
"""Files whose English stands in the code that says it."""
TEXTS = Catalogue.load()
IN_TEMPLATE = re.compile(r"""\bt\(\s*["']([\w.]+)["']\s*([~)(,])""")
KEY = re.compile(r"^(\w*)\.(\w+)$")


def used_keys() -> set[tuple[str, str]]:
    """Each key that a template or a page's code names, with the file that names it."""
    found = set()
    for path in TEMPLATES.glob("*.html"):
        page = page_of(path.stem)
        for key, after in IN_TEMPLATE.findall(path.read_text(encoding="utf-8")):
            # The frame of all pages names the title of the page that is in it.
            if after != "~" and not (path.stem == "base" and key.startswith(".")):
                found.add((whole_key(key, page), path.name))
    for path in CONSOLE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "t":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    found.add((whole_key(first.value, page_of(path.stem)), path.name))
    return found


def page_of(stem: str) -> str:
    """A template belongs to the page whose name it has or begins with: `chats_message.html` to `chats`."""
    names = sorted((page.name for page in find_pages()), key=len, reverse=True)
    return next((name for name in names if stem == name or stem.startswith(f"{name}_")), stem)


def whole_key(key: str, page: str) -> str:
    return f"{page}{key}" if key.startswith(".") else key


def test_every_text_is_there_in_both_languages_with_the_same_values():
    english = TEXTS.texts["en"]
    korean = {key: text for key, text in TEXTS.texts["ko"].items() if key.partition(".")[0] not in IN_CODE}
    assert set(english) == set(korean)
    fields = {key: (fields_of(text), fields_of(korean[key])) for key, text in english.items()}
    assert {key: both for key, both in fields.items() if both[0] != both[1]} == {}
    assert [key for table in TEXTS.texts.values() for key, text in table.items() if not text.strip()] == []


def test_every_setting_and_every_refusal_has_korean_words_too():
    import orchestrator.web.feature  # noqa: F401 - whose imports define all that is refused

    settings = {f"settings.{name}" for name in Settings.model_fields}
    codes = {str(code) for refusal in subclasses(BadRequest) if (code := getattr(refusal, "code", ""))}
    known = set(TEXTS.texts["ko"])
    refusals = {code for code in codes if not {f"errors.{code}", f"services.{code}"} & known}
    assert settings - known == set()
    assert refusals == set()


def test_every_stored_reason_has_korean_words_and_none_that_nobody_stores():
    korean = {key for key in TEXTS.texts["ko"] if key.startswith("reasons.")}
    assert korean == {key_of(text) for text in KEYS}
    assert key_of("somebody else's words") is None


def subclasses(kind: type) -> set[type]:
    """Return all classes below a class that are part of the host."""
    below = {one for each in kind.__subclasses__() for one in {each, *subclasses(each)}}
    return {one for one in below if one.__module__.startswith("orchestrator.")}


def fields_of(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_text_that_is_named_exists():
    used = used_keys()
    assert ("base.sign_in", "base.html") in used
    assert sorted((key, where) for key, where in used if key not in TEXTS.texts["en"]) == []


def test_every_page_has_a_title_and_says_what_it_is_about():
    pages = find_pages()
    assert pages
    for page in pages:
        for language in catalogue.LANGUAGES:
            assert TEXTS.text(language, f"{page.name}.title")
            assert TEXTS.text(language, f"{page.name}.about")
    assert len({page.order for page in pages}) == len(pages)


def test_a_missing_text_is_an_error_and_no_empty_place():
    with pytest.raises(TextMissing):
        TEXTS.text("ko", "base.no_such_text")


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"),
        ("ko", "ko"),
        ("ko-KR,ko;q=0.9,en;q=0.8", "ko"),
        ("de-DE,en;q=0.7,ko;q=0.9", "ko"),
        ("fr;q=1,de", "en"),
        ("ko;q=0", "en"),
        ("ko;q=x,en;q=0.1", "en"),
        (",;=,", "en"),
    ],
)
def test_the_language_is_the_first_of_ours_that_is_asked_for(header, language):
    assert preferred_language(header) == language


def test_every_vendored_file_is_the_one_its_manifest_names():
    manifest = tomllib.loads((STATIC / "vendored.toml").read_text(encoding="utf-8"))
    listed = {name: one["sha256"] for part in manifest.values() for name, one in part["files"].items()}
    assert {name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in listed} == listed
    icons = {"icons.svg", "andy.svg", "andy-192.png", "andy-512.png", "andy-maskable.png"}
    own = {"console.js", "live.js", "console.css", "vendored.toml", *icons}
    assert {path.name for path in STATIC.iterdir()} == {*listed, *own}


def test_templates_have_no_inline_script_style_or_handler():
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|hx-on|javascript:|\| *safe", text
        ), path.name
        for tag in re.findall(r"<[^>]*\shx-(?!nonce)[^>]*>", re.sub(r"{%.*?%}|{{.*?}}", "", text)):
            assert "hx-nonce=" in tag, f"{path.name}: htmx ignores {tag}"


@pytest.mark.parametrize("state", ["asked", "done", "failed"])
def test_the_audit_says_of_a_restore_whether_it_was_asked_for_done_or_failed(state):
    # A text for all three would say of a failed restore that the backup is in place.
    assert TEXTS.has(f"safety.row_restore_{state}")


@pytest.mark.parametrize("way", get_args(By))
@pytest.mark.parametrize("language", ["en", "ko"])
def test_each_way_to_list_the_costs_has_a_name(language, way):
    costs = tomllib.loads((CONSOLE / "texts" / "costs.toml").read_text(encoding="utf-8"))
    assert costs[language][f"by_{way}"]
