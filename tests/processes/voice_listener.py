"""Stands in for the program that listens to voice notes: what the file holds is what it prints.

A file that holds `hang` keeps it busy for ever; for `pipe` the words are read from `MODEL/pipe`.
It refuses to work beside another one of its model folder.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

model, path, *language = sys.argv[1:]
busy = Path(model) / "busy"
os.close(os.open(busy, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
try:
    said = Path(path).read_text(encoding="utf-8")
    if said == "hang":
        signal.pause()
    if said == "pipe":
        said = (Path(model) / "pipe").read_text(encoding="utf-8")
    print(said.replace("LANGUAGE", *language or ["none"]))
finally:
    busy.unlink()
