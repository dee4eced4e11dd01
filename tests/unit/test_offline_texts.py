from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from string import Formatter

import pytest

from agent_runner.agents.offline import english, korean
from agent_runner.agents.offline.checklists import Fault
from agent_runner.agents.offline.dates import Shift, Trouble
from agent_runner.agents.offline.intents import Plain, Remind, RemindUnclear
from agent_runner.agents.offline.reading import read
from agent_runner.agents.offline.texts import ENGLISH, KOREAN
from agent_runner.agents.offline.words import Words


def sentences(words: Words) -> Iterator[tuple[str, str]]:
    for field in fields(words):
        value = getattr(words, field.name)
        if isinstance(value, Mapping):
            yield from ((f"{field.name}.{key}", text) for key, text in value.items())
        else:
            yield field.name, str(value)


def blanks(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_both_languages_have_the_same_sentences_with_the_same_blanks() -> None:
    english_blanks = {name: blanks(text) for name, text in sentences(ENGLISH)}
    assert english_blanks == {name: blanks(text) for name, text in sentences(KOREAN)}


@pytest.mark.parametrize("words", [ENGLISH, KOREAN], ids=["en", "ko"])
def test_every_refusal_has_a_sentence(words: Words) -> None:
    assert set(words.troubles) == set(Trouble)
    assert set(words.faults) == set(Fault)
    assert set(words.shifts) == set(Shift)


@pytest.mark.parametrize("words", [ENGLISH, KOREAN], ids=["en", "ko"])
def test_every_example_in_the_help_is_understood(words: Words) -> None:
    bullets = [line[2:] for line in (words.help + words.help_main).splitlines() if line.startswith("• ")]
    for example in (part for bullet in bullets for part in bullet.split(" · ")):
        intent = read(example)
        assert intent.wish is not Plain.NEEDS_MODEL, example
        assert not isinstance(intent.wish, RemindUnclear), example
        assert intent.language is words.language, example


@pytest.mark.parametrize("words", [ENGLISH, KOREAN], ids=["en", "ko"])
def test_every_example_in_a_refusal_is_understood(words: Words) -> None:
    own = english.read if words is ENGLISH else korean.read
    shown = [text.rsplit(": ", 1)[1].rstrip(".") for text in words.troubles.values() if ": " in text]
    examples = [example for example in shown if "remind me" in example or "알려줘" in example]
    assert examples
    for example in examples:
        assert isinstance(own(example), Remind), example
