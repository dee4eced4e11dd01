"""The real runner as a child process in a workspace of its own, seen as the host sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from agent_runner.wire.files import unique_name, write_whole
from agent_runner.wire.frames import Frame, FrameDecoder, FrameLine, parse_frame
from agent_runner.wire.mailbox import Command, Reply, parse_command
from agent_runner.wire.notices import Notice
from agent_runner.wire.order import CLOSE_FILE, CloseOrder, RunOrder, TurnOrder
from agent_runner.workspace import Workspace
from tests.doubles.messages_api import Recorded, ScriptedMessagesApi
from tests.processes.forked_programs import forked

RUN = "run-1"
PLAIN = (sys.executable, "-m", "agent_runner")
"""The command of a new process, which has its children itself."""


def make_workspace(root: Path) -> Workspace:
    """Lay out the directories that the host would mount."""
    workspace = Workspace(root)
    for directory in (
        workspace.group,
        workspace.shared,
        workspace.extra,
        workspace.snapshots,
        workspace.input,
        workspace.replies,
        workspace.messages,
        workspace.tasks,
    ):
        directory.mkdir(parents=True)
    return workspace


def order_of(prompt: str, *, agent: str = "claude", turn: int = 1, **more: Any) -> RunOrder:
    """Make the order of a run whose first turn asks `prompt`."""
    first = TurnOrder(run=RUN, turn=turn, kind="chat", prompt=prompt)
    return RunOrder(run=RUN, group="g", chat_jid="local:g", agent=agent, turn=first, **more)  # type: ignore[arg-type]


class RunnerProcess:
    """Starts the runner on entering and kills it on leaving.

    Its stdout is decoded as the host does; stderr is kept as text.
    """

    def __init__(
        self,
        workspace: Workspace,
        order: RunOrder | str,
        *,
        environment: dict[str, str] | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        """It is forked from a template, unless `command` is another or `PLAIN`."""
        self.workspace = workspace
        self.frames: list[Frame] = []
        self.stray: list[str] = []
        self.stderr = ""
        self._order = order if isinstance(order, str) else order.to_json() + "\n"
        self._environment = environment or {}
        self._command = list(command or forked("runner", "-m", "agent_runner"))
        self._is_listening = True
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        home = self.workspace.root / "home"
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "ANDY_WORKSPACE": str(self.workspace.root),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            **self._environment,
        }
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=self.workspace.group,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._read_stdout),
            threading.Thread(target=self._read_stderr),
        ]
        for reader in self._readers:
            reader.start()
        assert self.process.stdin
        self.process.stdin.write(self._order.encode())
        self.process.stdin.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe
            pipe.close()

    def wait_for(self, *kinds: str, turn: int | None = None, seconds: float = 180) -> Frame:
        """Return the first frame of one of `kinds` (of `turn`), once it is there. Raises `TimeoutError`."""

        def wanted(frame: Frame) -> bool:
            return frame.kind in kinds and (turn is None or frame.turn == turn)

        return self._until(
            lambda: next(filter(wanted, self.frames), None), seconds, f"{kinds} of turn {turn}"
        )

    def stop_listening(self) -> None:
        """Close the reading end of its stdout at its next word."""
        self._is_listening = False

    def results(self, turn: int) -> list[str | None]:
        return [frame.result for frame in self.frames if frame.kind == "result" and frame.turn == turn]

    def exit_code(self, *, seconds: float = 180) -> int:
        """Wait for the end of the process and of its output."""
        code = self.process.wait(timeout=seconds)
        for reader in self._readers:
            reader.join(timeout=seconds)
        return code

    def ask(self, turn: int, prompt: str, *notices: Notice, run: str = RUN) -> None:
        """Put a turn into `input/`, with notices of the host."""
        order = TurnOrder(run=run, turn=turn, kind="chat", prompt=prompt, notices=notices)
        write_whole(self.workspace.input / unique_name(), order.to_json())

    def close(self, *runs: str) -> None:
        write_whole(self.workspace.input / CLOSE_FILE, CloseOrder(runs=runs or (RUN,)).to_json())

    def request(self, directory: Path, *, seconds: float = 180) -> Command:
        """Wait for the next request file and take it away."""
        path = self._until(lambda: next(iter(sorted(directory.glob("*.json"))), None), seconds, "a request")
        command = parse_command(path.read_bytes())
        path.unlink()
        return command

    def reply(
        self, command: Command, text: str, *, ok: bool = True, data: dict[str, Any] | None = None
    ) -> None:
        assert command.request_id
        code = "done" if ok else "refused"
        reply = Reply(request_id=command.request_id, ok=ok, code=code, text=text, data=data or {})
        write_whole(self.workspace.replies / f"{command.request_id}.json", reply.to_json())

    def keep_compaction(self) -> None:
        """Answer what is asked before and after a compaction: each waits seconds for an answer."""
        for _ in range(2):
            self.reply(self.request(self.workspace.tasks), "kept")

    def _until(self, find: Callable[[], Any], seconds: float, what: str) -> Any:
        found: Sequence[Any] = []

        def look() -> bool:
            nonlocal found
            value = find()
            found = [] if value is None else [value]
            return bool(found)

        with self._changed:
            for _ in range(int(seconds / 0.02)):
                if self._changed.wait_for(look, timeout=0.02):
                    return found[0]
        raise TimeoutError(f"no {what}; frames: {self.frames}; stray: {self.stray}; stderr: {self.stderr}")

    def _read_stdout(self) -> None:
        decoder = FrameDecoder()
        assert self.process.stdout
        while self._is_listening and (chunk := os.read(self.process.stdout.fileno(), 7)):
            for line in decoder.feed(chunk):
                with self._changed:
                    if isinstance(line, FrameLine):
                        self.frames.append(parse_frame(line))
                    else:
                        self.stray.append(line)
                    self._changed.notify_all()
        self.process.stdout.close()

    def _read_stderr(self) -> None:
        assert self.process.stderr
        while chunk := os.read(self.process.stderr.fileno(), 65536):
            self.stderr += chunk.decode(errors="replace")


Run = TypeVar("Run", bound=RunnerProcess)


class SharedRun(Generic[Run]):
    """One run for several tests, for a CLI takes a second to boot.

    Each test calls `begin` first, scripts what its own turns get, and sees in `turns` what the model was
    asked since. Fewer than ten turns in all: the tenth has a checkpoint in its prompt.
    """

    def __init__(self, runner: Run, api: ScriptedMessagesApi) -> None:
        self.runner = runner
        self.api = api
        self._turn = 1
        self._asked_before = 0

    def begin(self) -> None:
        """Wait until the first turn, which is nobody's, is over; what the model was asked so far is past."""
        self.runner.wait_for("turn_end", turn=1)
        self._asked_before = len(self.api.turns)

    def ask(self, prompt: str, *notices: Notice) -> int:
        """Put a turn before the agent; return its number."""
        self._turn += 1
        self.runner.ask(self._turn, prompt, *notices)
        return self._turn

    def answer_to(self, prompt: str, *notices: Notice) -> Frame:
        """Put a turn before the agent, and wait for its end."""
        return self.runner.wait_for("turn_end", turn=self.ask(prompt, *notices))

    @property
    def turns(self) -> list[Recorded]:
        return self.api.turns[self._asked_before :]
