"""The scripts for shells and the schema for editors, read as bash and a validator read them."""

from __future__ import annotations

import json
import subprocess

import jsonschema
import pytest

from orchestrator.cli import completion


def completed(script: str, *words: str) -> list[str]:
    """Return what bash offers at the end of `words`."""
    asked = (
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _andy andy; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    # As its input: an argument may have 128 KiB, and a script of all commands has more.
    done = subprocess.run(["bash"], input=f"{script}\n{asked}", capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_and_their_families(capsys: pytest.CaptureFixture[str]) -> None:
    completion.completion("bash")
    script = capsys.readouterr().out
    assert completed(script, "andy", "remin") == ["reminders"]
    assert completed(script, "andy", "groups", "reg") == ["register"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_given_a_script(capsys: pytest.CaptureFixture[str], shell: completion.Shell) -> None:
    completion.completion(shell)
    assert "uninstall" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("toml", "is_valid"),
    [
        ({"assistant_name": "Robin", "andy_port": 8701}, True),
        ({"agents": {"worker": {"enabled": False}}}, True),
        ({"andy_port": 70_000}, False),
        ({"andy_prot": 8701}, False),
    ],
)
def test_the_schema_takes_what_andy_takes(
    capsys: pytest.CaptureFixture[str], toml: dict[str, object], *, is_valid: bool
) -> None:
    completion.schema()
    errors = list(jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out)).iter_errors(toml))
    assert (errors == []) is is_valid
