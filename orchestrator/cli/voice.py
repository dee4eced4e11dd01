"""`andy voice`: the transcription of voice notes, and its model."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Annotated, TypedDict

from cyclopts import App, Parameter

from orchestrator.base import installation
from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import HomeOption, JsonOption, show
from orchestrator.domain.errors import AndyError

voice_app = App(name="voice")


class VoiceNotReady(AndyError):
    """Voice notes cannot be transcribed yet."""


class VoiceStatus(TypedDict):
    """The state of the transcription of voice notes, as `--json` prints it."""

    on: bool
    """Whether voice notes are transcribed: the library and the model are both installed."""
    model: str
    """The name of the model that the settings choose; empty for none."""
    folder: str
    """The path where the model belongs."""
    library: bool
    """Whether the library that transcribes is installed."""
    installed: bool
    """Whether the model is in its folder."""


@voice_app.command
def status(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show whether voice notes are transcribed, by which model, and what is missing for it.

    Example: `andy voice status`
    """
    show(_status(home), _status_lines, as_json=as_json)


@voice_app.command
def install(
    *,
    folder: Annotated[
        Path | None, Parameter(name="--from", help="Copy the model from this path instead of downloading it.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Install the model of ANDY_VOICE_MODEL: download it once (145 MB for "base"), or copy it.

    Example: `andy voice install`
    """
    from orchestrator.channels.voice import transcriber

    report = _status(home)
    if not report["model"]:
        raise UsageError("ANDY_VOICE_MODEL is empty: name a model there, such as base.")
    if not report["library"]:
        raise VoiceNotReady(_library_help())
    target = Path(report["folder"])
    # Filled under another name: a download that breaks off must not be taken for a model.
    partial = target.with_name(f".{target.name}.partial")
    # An earlier try that was killed may have left files there.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if folder is not None:
            if not transcriber.is_model(folder):
                raise UsageError(f"{folder} holds no model: it needs {', '.join(transcriber.MODEL_FILES)}.")
            print(f"Copying {folder} …", flush=True)
            try:
                shutil.copytree(folder, partial)
            except shutil.Error as error:
                reason = str(error.args[0][0][2])  # of each file: its path, its copy, and what went wrong
                raise VoiceNotReady(f"The model cannot be copied: {reason}.") from error
        else:
            _download(report["model"], partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f"The model '{report['model']}' is in {target}. Start Andy again to use it.")


@voice_app.command(name="try")
def try_file(
    file: Annotated[Path, Parameter(help="The sound file.")],
    /,
    *,
    language: Annotated[
        str | None, Parameter(help="The spoken language, such as ko. [detected from the sound]")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Transcribe one sound file as a voice note would be.

    Example: `andy voice try note.ogg --language ko`
    """
    from orchestrator.channels.voice.transcriber import VoiceTranscriber

    result = _status(home)
    if not result["on"]:
        raise VoiceNotReady(_missing(result))
    if not file.is_file():
        raise UsageError(f"There is no file {file}.")
    transcript = asyncio.run(
        VoiceTranscriber(Path(result["folder"])).transcribe(file.resolve(), seconds=0, language=language)
    )
    if transcript.failure:
        raise VoiceNotReady(f"Nothing was written down: {transcript.failure}.")
    print(f"🎤 {transcript.text}")


def _status(home: Path | None) -> VoiceStatus:
    """Return the state of the transcription of voice notes in a home."""
    from orchestrator.channels.voice import transcriber
    from orchestrator.cli import terminal

    own_home = terminal.home_of(home)
    model = terminal.settings_of(own_home).andy_voice_model
    folder = transcriber.model_folder(own_home, model or "none")
    library, installed = transcriber.has_library(), bool(model) and transcriber.is_model(folder)
    return {
        "on": library and installed,
        "model": model,
        "folder": str(folder),
        "library": library,
        "installed": installed,
    }


def _status_lines(report: VoiceStatus) -> list[str]:
    """Return the line that says whether voice notes are transcribed, and what is missing for it."""
    if report["on"]:
        return [f"Voice notes are written down by the model '{report['model']}' in {report['folder']}."]
    return [f"Voice notes are not written down. {_missing(report)}"]


def _missing(report: VoiceStatus) -> str:
    """Return what is missing for the transcription of voice notes, with the fix.

    `report` is the result of `_status`, in which `on` is false.
    """
    if not report["model"]:
        return "ANDY_VOICE_MODEL is empty, so voice notes are not transcribed: set it."
    if not report["library"]:
        return _library_help()
    return "The model is not here: run 'andy voice install'."


def _library_help() -> str:
    """Return how to install the library that transcribes, for this kind of installation."""
    if installation.installer() is installation.Installer.COMPOSE:
        if not (Path(installation.COMPOSE_HOME) / installation.DOCKERFILE).is_file():
            return "What listens is in no released image: docs/voice.md says how to build one in a clone."
        return (
            "What listens is not in this image. On the host put ANDY_VOICE=1 into .env, type"
            " 'docker compose up -d --build', then 'docker compose exec andy andy voice install'."
        )
    command = installation.command_to_add("voice")
    return f"What listens is not installed. Install it with {command}, then 'andy voice install'."


def _download(model: str, target: Path) -> None:
    """Download a model for voice notes into the folder `target`. Raises `VoiceNotReady` if that fails."""
    import warnings

    import httpx2
    from faster_whisper import download_model

    print(f"Downloading the model '{model}' from Hugging Face …", flush=True)
    try:
        with warnings.catch_warnings():
            # The library uses an outdated argument of another one: the warning is not for the owner.
            warnings.simplefilter("ignore", UserWarning)
            download_model(model, output_dir=str(target))
    # Hugging Face's library lets errors of its HTTP library pass, and its downloader raises RuntimeError.
    except (ValueError, OSError, RuntimeError, httpx2.HTTPError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise VoiceNotReady(
            f"The model could not be downloaded: {reason}. Have a copy? andy voice install --from FOLDER"
        ) from error
