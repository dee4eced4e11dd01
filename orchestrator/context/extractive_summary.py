"""Write the running summary without a model, from sentences of the old one and of messages. Pure.

The same input gives the same summary. TextRank on shared groups of three characters needs no knowledge of a
language, which is why it works for Korean. The newest decision and the last sentence are always included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.context import script
from orchestrator.context.models import ContextMessage

MAX_SENTENCES = 160
MAX_SENTENCE_CHARS = 180
"""Characters of a sentence: two of the widest, the newest decision and the last sentence, fit together."""
MAX_TEXT_CHARS = 20_000
"""Characters of one message that are read, from its head and its tail."""
ROUNDS, DAMPING = 20, 0.85
"""Iterations of TextRank, and its usual damping factor."""
RECENCY = 0.97
"""The factor by which a sentence is worth less than the one after it."""
ROLE_WEIGHT = {"assistant": 1.5, "user": 1.0}
SUMMARY_WEIGHT = 1.25
DECISION_BONUS = 1.6

# Breaks between sentences: blanks after a full stop (`Done. Next`), nothing after a Chinese or Japanese one
# (`好。再`), nothing after the full stop of a Korean ending (`했다.그리고`), and line breaks.
_BREAK = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|(?<=[다요죠음함]\.)(?=\S)|[\r\n]+")
_DECISION = re.compile(
    r"(?i)\b(?:decid\w*|decision\w*|must|agreed?|chose|chosen|done|complet\w+|finish\w+|fixed|fail\w*|error\w*"
    r"|block\w+|deadline|will use|never|always)\b"
    r"|결정|정했|정하기로|하기로|완료|끝났|마쳤|오류|에러|실패|합의|확정|반드시|마감|막혔"
)
_BLANKS = re.compile(r"\s+")


class Summarizer(Protocol):
    """Combines an old summary and the messages that left the window into one summary."""

    def fold(self, old: str, evicted: Sequence[ContextMessage]) -> str:
        """Return the summary `old` extended by the contents of `evicted`: messages that are stored no longer
        in full.

        It has at most 400 Korean or 700 Latin characters (`script.MAX_SUMMARY_WEIGHT`). Blocks; never raises.
        Called under the lock of the group's files.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sentence:
    """A sentence that a summary may have."""

    text: str
    weight: float
    """The weight of its source: the old summary, the assistant or the user."""

    @property
    def is_decision(self) -> bool:
        """Whether the sentence has words of a decision, a result or a failure."""
        return _DECISION.search(self.text) is not None


class ExtractiveSummarizer:
    """Summarises by choosing sentences; it writes none of its own."""

    def fold(self, old: str, evicted: Sequence[ContextMessage]) -> str:
        """Return the sentences of `old` and `evicted` that matter most and fit a summary; all if they fit.

        Repeated sentences appear once. If not all fit, only the newest `MAX_SENTENCES` are considered, and
        the last decision before them if none of them is one.
        """
        all_sentences = _sentences(old, SUMMARY_WEIGHT)
        for message in evicted:
            all_sentences += _sentences(message.content, ROLE_WEIGHT[message.role])
        sentences = _unique(all_sentences)
        whole = "\n".join(sentence.text for sentence in sentences)
        if script.weight(whole) <= script.MAX_SUMMARY_WEIGHT:
            return whole
        return "\n".join(_texts_that_fit(_newest_with_decision(sentences)))


def merged(old: str, newer: str) -> str:
    """Return an old and a newer summary as one of at most `MAX_SUMMARY_WEIGHT`, each sentence once."""
    # The second summary is folded in like an answer; its id and time are not used.
    added = ContextMessage(id="-", role="assistant", content=newer, ts="")
    return ExtractiveSummarizer().fold(old, [added] if newer.strip() else [])


def split(text: str) -> list[str]:
    """Return the sentences of a text, English or Korean, each at most `MAX_SENTENCE_CHARS` long."""
    pieces = (_BLANKS.sub(" ", piece).strip() for piece in _BREAK.split(text))
    return [part for piece in pieces if piece for part in _cut_to_limit(piece)]


def _sentences(text: str, weight: float) -> list[_Sentence]:
    """Return a text's sentences, each with the weight of its source: `weight`.

    Of a text longer than `MAX_TEXT_CHARS`, only those at its start and end are returned.
    """
    if len(text) > MAX_TEXT_CHARS:
        half = MAX_TEXT_CHARS // 2
        text = f"{script.prefix(text, half)}\n{script.suffix(text, half)}"
    return [_Sentence(text=piece, weight=weight) for piece in split(text)]


def _cut_to_limit(sentence: str) -> list[str]:
    """Return a sentence in parts of at most `MAX_SENTENCE_CHARS`, cut at spaces where possible."""
    parts: list[str] = []
    while len(sentence) > MAX_SENTENCE_CHARS:
        part = script.prefix(sentence, MAX_SENTENCE_CHARS)
        # Not at a space in the first half, which would leave a very short part.
        blank = part.rfind(" ")
        part = part[:blank] if blank > MAX_SENTENCE_CHARS // 2 else part
        parts.append(part.strip())
        sentence = sentence[len(part) :].strip()
    return [part for part in (*parts, sentence) if part]


def _unique(sentences: Sequence[_Sentence]) -> list[_Sentence]:
    """Return the sentences without repetitions; of equal sentences, the last one stays."""
    last = {sentence.text: number for number, sentence in enumerate(sentences)}
    return [sentence for number, sentence in enumerate(sentences) if last[sentence.text] == number]


def _newest_with_decision(sentences: Sequence[_Sentence]) -> list[_Sentence]:
    """Return the last `MAX_SENTENCES` sentences; before them the last decision, if none of them is one."""
    # Limited, because ranking compares each sentence with each other one.
    older, newer = sentences[:-MAX_SENTENCES], list(sentences[-MAX_SENTENCES:])
    if any(sentence.is_decision for sentence in newer):
        return newer
    return [*[sentence for sentence in older if sentence.is_decision][-1:], *newer]


def _texts_that_fit(sentences: Sequence[_Sentence]) -> list[str]:
    """Return the texts of the sentences that fit together into a summary, in their order.

    The newest decision and the last sentence are always chosen, then those worth most.
    """
    newest = len(sentences) - 1
    decisions = [number for number, sentence in enumerate(sentences) if sentence.is_decision]
    chosen_numbers = {newest, *decisions[-1:]}
    room = script.MAX_SUMMARY_WEIGHT - sum(
        _weight_as_line(sentences[number].text) for number in chosen_numbers
    )
    for number in _by_worth(sentences):
        weight = _weight_as_line(sentences[number].text)
        if number not in chosen_numbers and weight <= room:
            chosen_numbers.add(number)
            room -= weight
    # The numbers were chosen by worth; sorted, the sentences are in the order of the conversation again.
    return [sentences[number].text for number in sorted(chosen_numbers)]


def _weight_as_line(text: str) -> int:
    """Return the weight of a sentence with its line break, which counts against the limit of a summary."""
    return script.weight(text) + script.weight("\n")


def _by_worth(sentences: Sequence[_Sentence]) -> list[int]:
    """Return the indexes of the sentences, the one worth most first."""
    ranks = _ranks([_trigrams(sentence.text) for sentence in sentences])
    newest = len(sentences) - 1

    def worth(number: int) -> float:
        """Return a sentence's worth: its rank, weighted by source, kind and age."""
        sentence = sentences[number]
        bonus = DECISION_BONUS if sentence.is_decision else 1.0
        return ranks[number] * sentence.weight * bonus * RECENCY ** (newest - number)

    # Rounded, so that machines whose floating point differs in the last bit give the same order. Of sentences
    # with the same worth, the newer comes first.
    return sorted(range(len(sentences)), key=lambda number: (-round(worth(number), 9), -number))


def _trigrams(text: str) -> frozenset[str]:
    """Return all groups of three neighbouring characters in a text; the text itself if it is shorter."""
    folded = text.casefold()
    return frozenset(folded[start : start + 3] for start in range(max(len(folded) - 2, 1)))


def _ranks(grams: Sequence[frozenset[str]]) -> list[float]:
    """Return the TextRank of each sentence; `grams` has the groups of three characters of each.

    A sentence that resembles many high-ranking sentences ranks high.
    """
    count = len(grams)
    # similarities[a][b] is how much sentences a and b resemble each other, from 0 to 1.
    similarities = [[0.0] * count for _ in grams]
    for first in range(count):
        for second in range(first):
            shared = len(grams[first] & grams[second])
            similarity = shared / math.sqrt(len(grams[first]) * len(grams[second]))
            similarities[first][second] = similarities[second][first] = similarity
    # A sentence that resembles no other passes nothing on; 1.0 only avoids a division by zero.
    totals = [sum(row) or 1.0 for row in similarities]
    ranks = [1.0 / count] * count
    for _ in range(ROUNDS):
        # Each sentence passes its rank on to the others, in proportion to their similarities.
        shares = [rank / total for rank, total in zip(ranks, totals, strict=True)]
        received = [sum(map(float.__mul__, row, shares)) for row in similarities]
        ranks = [(1 - DAMPING) / count + DAMPING * rank for rank in received]
    return ranks
