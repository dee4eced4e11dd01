"""A build told in plain words, and its failure with what a person needs."""

from __future__ import annotations

import re

import pytest

from orchestrator.containers.image.progress import PHASES, BuildProgress, follow_build
from orchestrator.domain.errors import ImageNotBuilt


@pytest.fixture
def said() -> list[str]:
    return []


def follow(said: list[str], *events: dict[str, str]) -> list[str]:
    follow_build(events, BuildProgress(said.append))
    return [re.sub(r" \(\d+ s\)$", "", line) for line in said]


def test_each_stage_of_the_dockerfile_is_a_phase(said: list[str]) -> None:
    assert follow(
        said,
        {"stream": "Step 1/9 : FROM ${BASE_IMAGE} AS base"},
        {"stream": "Step 2/9 : FROM base AS runner\n"},
        {"stream": "Successfully built 4f9c998e76ca\n"},
    ) == ["base: the tools of the image", "runner: the runner", "runner: Successfully built 4f9c998e76ca"]


def test_every_line_tells_how_long_it_has_been(said: list[str]) -> None:
    follow(said, {"stream": "Collecting pydantic"})
    assert re.fullmatch(r"base: Collecting pydantic \(\d+ s\)", said[0])


def test_the_engines_own_chatter_and_colours_are_left_out(said: list[str]) -> None:
    assert follow(
        said,
        {"stream": " ---> Using cache\n"},
        {"stream": "Step 2/9 : RUN something long"},
        {"stream": "\n"},
        {"aux": "sha256:1"},
        {"stream": "\x1b[91mOne line\nand another\x1b[0m\n"},
    ) == ["base: One line", "base: and another"]


def test_a_failed_step_is_told_with_its_phase_its_last_lines_and_the_mend(said: list[str]) -> None:
    with pytest.raises(ImageNotBuilt) as failure:
        follow(
            said,
            {"stream": "Step 5/9 : FROM base AS dependencies"},
            {"stream": "Step 6/9 : RUN pip install"},
            {"stream": "ERROR: No matching distribution found for pydantic\n"},
            {"error": "The command '/bin/sh -c pip install' returned a non-zero code: 1"},
        )
    assert str(failure.value).splitlines() == [
        "The image was not built: 'dependencies' failed: a command ended with code 1. The last lines:",
        f"  {PHASES['dependencies']}",
        "  RUN pip install",
        "  ERROR: No matching distribution found for pydantic",
        "Fix what they name and run 'andy image build' again.",
    ]


def test_a_long_output_keeps_its_end_for_the_error(said: list[str]) -> None:
    with pytest.raises(ImageNotBuilt) as failure:
        follow(said, *({"stream": f"line {number}"} for number in range(100)), {"error": "disk full."})
    text = str(failure.value)
    assert "line 99" in text
    assert "line 50" not in text
    assert "disk full. The last lines" in text
