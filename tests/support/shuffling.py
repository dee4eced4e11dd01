"""Run the files of tests in random order: `--shuffle=SEED`, or `--shuffle=new` for another one each time."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import pytest

NEW = "new"


class Shuffling:
    """A plugin of pytest. The tests of one file stay together and in order: they share what takes long."""

    def __init__(self, config: pytest.Config) -> None:
        given: str = getattr(config, "workerinput", {}).get("shuffle", config.option.shuffle)
        self._seed = str(random.SystemRandom().randrange(1_000_000)) if given == NEW else given

    def pytest_report_header(self) -> str:
        return f"files in random order: --shuffle={self._seed}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["shuffle"] = self._seed  # workers are given the options as they were typed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = shuffled(items, self._seed)


def shuffled(items: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """Return the items with their files in the order of a seed, the same on every machine."""
    files = [list(found) for _, found in groupby(items, key=lambda item: item.path)]
    random.Random(seed).shuffle(files)
    return [item for file in files for item in file]
