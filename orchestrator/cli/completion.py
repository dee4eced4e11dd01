"""`andy completion` and `andy settings`: completion for shells, and a schema of `andy.toml` for editors."""

from __future__ import annotations

import json
from typing import Literal

from cyclopts import App

Shell = Literal["bash", "zsh", "fish"]
settings_app = App(name="settings")


def completion(shell: Shell, /) -> None:
    """Print what a shell needs in order to complete Andy's commands and options.

    Write it to where the shell looks: ~/.local/share/bash-completion/completions/andy for bash.

    Example: `andy completion bash`

    Parameters
    ----------
    shell
        bash; zsh: into a file _andy in a folder of $fpath; fish: into ~/.config/fish/completions/andy.fish.
    """
    from orchestrator.cli.main import app

    print(app.generate_completion(prog_name="andy", shell=shell))


@settings_app.command
def schema() -> None:
    """Print the JSON Schema of andy.toml, with which an editor completes and checks that file.

    Example: `andy settings schema`
    """
    from orchestrator.home.settings import Settings

    document = Settings.model_json_schema()
    # The names of a table may be written with or without it: [agents.worker] enabled, agents_worker_enabled.
    document["additionalProperties"] = {"type": "object"}
    print(json.dumps(document, indent=2, ensure_ascii=False))
