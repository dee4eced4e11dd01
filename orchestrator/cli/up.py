"""`andy up` and `andy image`: run the host, and build the image that its agents run in."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from orchestrator.base import installation
from orchestrator.cli import host_process
from orchestrator.cli.options import HomeOption, JsonOption, Runtime, show
from orchestrator.cli.terminal import home_of, say_aside, settings_of
from orchestrator.domain.errors import BadRequest

Agent = Literal["auto", "claude", "offline"]

image_app = App(name="image")


def up(
    *,
    home: HomeOption = None,
    runtime: Runtime | None = None,
    agent: Agent | None = None,
    port: int | None = None,
    verbose: Annotated[bool, Parameter(name=["-v", "--verbose"], negative="")] = False,
) -> None:
    """Run Andy until Ctrl-C or SIGTERM. Containers keep running, and the next start continues with them.

    Example: `andy up --runtime docker --port 8700`

    Parameters
    ----------
    runtime
        Where agents run. [ANDY_RUNTIME, else auto]
    agent
        Who answers: `claude` needs a credential in .env, `offline` needs nothing. [ANDY_AGENT, else auto]
    port
        The port of the console and the HTTP API on 127.0.0.1. [ANDY_PORT, else 8700]
    verbose
        Show every line of the log in this terminal, not only errors. 'andy logs -f' shows it elsewhere.
    """
    host_process.run(home, runtime=runtime, agent=agent, port=port, is_verbose=verbose)


@image_app.command
def build(
    *,
    base: Annotated[
        Literal["auto", "pull", "debian"],
        Parameter(help="The source of the base image: a registry, or a build from Debian packages."),
    ] = "auto",
    layers: Annotated[
        tuple[Literal["browser", "node", "none"], ...],
        Parameter(
            name="--with",
            negative="",
            help="Additional programs: Chromium, 600 MB; Node.js with npm. [those of the last build]",
        ),
    ] = (),
    tag: Annotated[str | None, Parameter(help="The image's name. [ANDY_IMAGE]")] = None,
    home: HomeOption = None,
) -> None:
    """Build the agents' image: minutes the first time, seconds after a change of the runner.

    Later builds include the programs chosen with `--with` again; `--with none` leaves them out.

    Example: `andy image build --with browser`
    """
    # An empty list means no additional program; None, without `--with`, means those of the last build.
    chosen = [layer for layer in layers if layer != "none"] if layers else None
    _build_image(home, base=base, tag=tag, layers=chosen)


@image_app.command
def push(
    registry: str,
    /,
    *,
    tag: Annotated[str | None, Parameter(help="The image that is pushed. [ANDY_IMAGE]")] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Push the agents' image to a registry, from which the nodes of a swarm fetch it.

    Example: `andy image push registry:5000`

    Parameters
    ----------
    registry
        A host with or without a port and a path: registry:5000, ghcr.io/me.
    """
    from orchestrator.containers import runtime_selection

    image = tag or settings_of(home_of(home)).andy_image
    if installation.is_in_compose():
        # The name is `andy-agent:1` for `ghcr.io/me/andy-agent:1@sha256:…`. If the owner has named the
        # registry with `/andy-agent` at its end, that is left out, as it would come twice.
        name = image.partition("@")[0].rpartition("/")[2]
        place = registry.removesuffix(f"/{name.partition(':')[0]}")
        raise BadRequest(
            f"Andy's container may not push images: on the host, put ANDY_IMAGE={place}/{name} into .env,"
            " then type 'docker compose build agent && docker compose push agent'."
        )
    name = runtime_selection.push_image(image, registry, say=say_aside)
    show({"image": name}, _pushed_lines, as_json=as_json)


def _pushed_lines(report: dict[str, str]) -> list[str]:
    """Return the lines that say where the pushed image is now, and how to use it."""
    return [
        f"{report['image']} is there. Write this into .env, and start Andy again:",
        f"ANDY_IMAGE={report['image']}",
    ]


def _build_image(
    home_option: Path | None, *, base: str, tag: str | None, layers: Collection[str] | None
) -> None:
    """Build the agents' image and print each step on stderr.

    `base` is where the base image comes from: `auto`, `pull` or `debian`. `tag` is the image's name; None
    means that of the settings. `layers` are additional programs, `browser` and `node`; None means those that
    the present image has.
    """
    from orchestrator.containers import runtime_selection

    settings = settings_of(home_of(home_option))
    runtime_selection.build_image(tag or settings.andy_image, base=base, say=say_aside, layers=layers)
