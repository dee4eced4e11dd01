"""What one check of `andy doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """`mend` is what to do about it; a `note` may be as it was meant."""

    name: str
    state: Literal["ok", "note", "bad"]
    text: str
    mend: str = ""

    @property
    def is_bad(self) -> bool:
        return self.state == "bad"


def ok(name: str, text: str) -> DoctorFinding:
    return DoctorFinding(name=name, state="ok", text=text)


def note(name: str, text: str, *, mend: str = "") -> DoctorFinding:
    return DoctorFinding(name=name, state="note", text=text, mend=mend)


def bad(name: str, text: str, *, mend: str) -> DoctorFinding:
    return DoctorFinding(name=name, state="bad", text=text, mend=mend)
