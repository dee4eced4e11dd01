"""Parse containers' input outside of the host's process, and limit the time that a group's bodies take.

A body of megabytes occupies a parser for a second. In the event loop, or in a thread (the parser does not
release the GIL), every other group would wait for it. Small bodies are parsed directly.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import structlog

from agent_runner.wire.processes import kill_and_wait
from orchestrator.base.clock import Clock
from orchestrator.base.rate_limits import TokenBucket
from orchestrator.domain.values import Folder
from orchestrator.groups.settings import ModelFeature
from orchestrator.proxies import mcp_message
from orchestrator.proxies.model import adaptation, error_responses, request_policy
from orchestrator.proxies.model.error_responses import ProxyRefusal, ProxyRefused
from orchestrator.proxies.strict_json import NotStrictJson

log = structlog.get_logger(__name__)

SMALL_BYTES = 4 * 1024
"""Bytes up to which a body is parsed in the host's process, in about a millisecond."""
ORDINARY_BYTES = 1024 * 1024
"""Bytes up to which a body goes to the child for ordinary bodies. Larger ones have a second child, so that
the others do not wait for it: on a busy machine, 32 MiB take long just to arrive.
"""
JOB_SECONDS = 60.0
"""Seconds of real time that one body may take, including the start of a child, which took eight on a busy
machine. A hostile body is ended by the limits of processor time.
"""
ORDINARY_CPU_SECONDS, LARGE_CPU_SECONDS = 1.0, 5.0
"""Seconds of processor time that one body may take in its child: ten times what the worst body within the
bounds of `strict_json` needs. A child that needs more ends at once, so that no group blocks it for the
others.
"""
BURST_MS, MS_A_SECOND = 2_000, 100
"""Milliseconds of processor time for one group: a burst, then a tenth of a processor."""
MAX_GROUPS = 1_000
"""Groups whose use of the processor is stored in memory."""
MAX_HEAD_BYTES = 1024 * 1024
"""Most bytes of an answer's line, which contains the arguments of a call as people are shown them."""

Job = Callable[[bytes, dict[str, Any]], tuple[dict[str, Any], bytes]]
"""`(body, options)`: returns the result, as JSON and bytes."""


def _check_model_request(body: bytes, options: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Run the job `model`: check the body of a model request. Return its facts, and no bytes.

    `options` are the keyword arguments of `check_request`.
    """
    return asdict(request_policy.check_request(body, **options)), b""


def _adapt_model_request(body: bytes, options: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Run the job `adapt`: check the body of a model request, and adapt it to another service.

    Return the request's facts, and the adapted body. `options` are the keyword arguments of `read_request`
    and, under "adapt", those of `adapt_request`.
    """
    adapt_options = options.pop("adapt")
    facts, document = request_policy.read_request(body, **options)
    adapted = adaptation.adapt_request(document, **adapt_options)
    return asdict(facts), json.dumps(adapted, separators=(",", ":")).encode()


def _read_mcp_message(body: bytes, _: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Run the job `mcp`: return the MCP message in a body, as its fields and the bytes to send on."""
    return mcp_message.read_message(body).to_wire()


JOBS: dict[str, Job] = {
    "model": _check_model_request,
    "adapt": _adapt_model_request,
    "mcp": _read_mcp_message,
}
"""The jobs by the names that are sent to a child."""


@dataclass(slots=True)
class _Group:
    """The state of one group. Its bodies are parsed one at a time, so that they wait only for each other."""

    lock: asyncio.Lock
    """Held while a body is parsed."""
    work: TokenBucket
    """The processor time that the group may use, in milliseconds."""


class ParsingProcess:
    """Parses containers' bodies: small ones in the host's process, others in two child processes.

    The child processes start when they are first needed.
    """

    def __init__(self, *, clock: Clock) -> None:
        """`clock` is the host's. With time it refills each group's allowance of processor time."""
        self._clock = clock
        self._groups: dict[Folder, _Group] = {}
        self._ordinary = _ParserChild(ORDINARY_CPU_SECONDS)
        self._large = _ParserChild(LARGE_CPU_SECONDS)

    async def check_model_request(
        self,
        folder: Folder,
        body: bytes,
        *,
        may_search: bool,
        is_open: bool,
        features: Sequence[ModelFeature] = (),
    ) -> request_policy.RequestFacts:
        """Check the body of a model request of a group, and return its facts if it may pass.

        Args:
            folder: the group.
            body: the body in JSON.
            may_search: whether the model service may search the web for it.
            is_open: whether the group's containers reach the internet anyway.
            features: the features of the service that the owner lets the group pay for.

        Raises:
            ProxyRefused: the body is ambiguous, requests what the group may not, or took too long to parse.
        """
        options = {"may_search": may_search, "is_open": is_open, "features": list(features)}
        facts, _ = await self._run(folder, "model", body, options)
        return request_policy.RequestFacts(**facts)

    async def adapt_model_request(
        self,
        folder: Folder,
        body: bytes,
        *,
        model: str | None,
        abilities: Sequence[str],
        may_search: bool,
        is_open: bool,
    ) -> tuple[request_policy.RequestFacts, bytes]:
        """Check the body of a model request of a group, and adapt it to a service with these abilities.

        Return the request's facts and the adapted body.

        Args:
            folder: the group.
            body: the body in JSON.
            model: replaces the model of the request, unless it is None.
            abilities: the names of the service's abilities.
            may_search: whether the model service may search the web for it.
            is_open: whether the group's containers reach the internet anyway.

        Raises:
            ProxyRefused: the body is ambiguous, requests what the group may not, or took too long to parse.
        """
        options = {
            "may_search": may_search,
            "is_open": is_open,
            "adapt": {"model": model, "abilities": sorted(abilities)},
        }
        facts, adapted_body = await self._run(folder, "adapt", body, options)
        return request_policy.RequestFacts(**facts), adapted_body

    async def read_mcp_message(self, folder: Folder, body: bytes) -> mcp_message.McpMessage:
        """Return the MCP message in a body that a group's container has sent.

        Raises `ProxyRefused` if it is no such message, or took too long to parse.
        """
        return mcp_message.McpMessage.from_wire(*await self._run(folder, "mcp", body, {}))

    async def aclose(self) -> None:
        """End the child processes. May be called twice."""
        await self._ordinary.aclose()
        await self._large.aclose()

    async def _run(
        self, folder: Folder, job: str, body: bytes, options: dict[str, Any]
    ) -> tuple[dict[str, Any], bytes]:
        """Run a job of `JOBS` for a group, and return its result as a JSON object and bytes.

        A small body is processed in this process, a larger one in a child process. The processor time is
        charged to the group.

        Raises `ProxyRefused` if the job refuses the body, or the group's bodies have taken too much time.
        """
        group = self._group(folder)
        async with group.lock:
            wait_ms = group.work.wait_ms()
            if wait_ms > 0:
                raise ProxyRefused(error_responses.parsed_too_much(wait_ms))
            if len(body) > SMALL_BYTES:
                return await self._run_in_child(group, job, body, options)
            started = time.thread_time()
            try:
                return _run_job(job, body, options)
            finally:
                group.work.take(_milliseconds(time.thread_time() - started))

    def _group(self, folder: Folder) -> _Group:
        """Return the state of a group, which is created if it is not known.

        If `MAX_GROUPS` are known already, those of which no body is being parsed are forgotten first.
        """
        if folder not in self._groups and len(self._groups) >= MAX_GROUPS:
            # A group that is forgotten here may use a whole burst of processor time again. Groups whose body
            # is being parsed stay: with a new lock, two of their bodies would be parsed at once.
            self._groups = {name: group for name, group in self._groups.items() if group.lock.locked()}
        bucket = TokenBucket(self._clock, at_once=BURST_MS, a_second=MS_A_SECOND)
        return self._groups.setdefault(folder, _Group(asyncio.Lock(), bucket))

    async def _run_in_child(
        self, group: _Group, job: str, body: bytes, options: dict[str, Any]
    ) -> tuple[dict[str, Any], bytes]:
        """Run a job in a child process, and charge the processor time that it used to the group.

        Return the job's result as a JSON object and bytes. Real time is not charged, because a busy machine
        is not the group's fault. Only if the child process does not answer, the real time is charged, but no
        more than the processor time that one body may use.

        Raises `ProxyRefused` if the job refuses the body, or the child process fails or takes too long.
        """
        child = self._ordinary if len(body) <= ORDINARY_BYTES else self._large
        async with child.lock:
            started = time.perf_counter()
            try:
                answer, payload = await child.run({"job": job, "options": options}, body)
            except BaseException as error:
                # The child can no longer report its processor time, and cannot have used more than this.
                seconds = min(time.perf_counter() - started, child.cpu_seconds)
                group.work.take(_milliseconds(seconds))
                if not isinstance(error, OSError | EOFError | ValueError):  # a `TimeoutError` is an `OSError`
                    raise
                log.warning("parsing.failed", job=job, bytes=len(body), reason=repr(error))
                if isinstance(error, OSError):
                    # Not the body's fault: the machine is so busy that the child has not used up its
                    # processor time yet, or it can start no process now. Clients send the request again.
                    raise ProxyRefused(error_responses.NOT_READ) from error
                # The child has ended without an answer, or with a broken one: the system kills it when it
                # has used its processor time.
                raise ProxyRefused(error_responses.malformed("it could not be read in time")) from error
        group.work.take(answer["ms"])  # the processor time, as the child has measured it
        if (refusal := answer.get("refusal")) is not None:
            headers = tuple((name.encode(), value.encode()) for name, value in refusal.pop("headers"))
            raise ProxyRefused(ProxyRefusal(**refusal, headers=headers))
        return answer["found"], payload  # "found" is the job's result, see `_answer`


class _ParserChild:
    """A child process that does one job at a time. It starts with its first job.

    Callers hold `lock` during `run`.
    """

    def __init__(self, cpu_seconds: float) -> None:
        """`cpu_seconds` is the processor time that one job may take."""
        self.cpu_seconds = cpu_seconds
        self.lock = asyncio.Lock()
        self.process: asyncio.subprocess.Process | None = None
        """The running process; None before the first job, and after an error until the next job."""
        self._is_closed = False

    async def run(self, request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a request with a body to the process; return its answer as a JSON object, and bytes.

        After any error the process is ended, and the next request starts a new one.

        Raises:
            TimeoutError: no answer came within `JOB_SECONDS`.
            OSError, EOFError: the process could not be started, or has ended, or `aclose` was called.
            ValueError: the answer is malformed.
        """
        self._refuse_if_closed()
        # A process that was killed while it had no work is replaced.
        if self.process is None or self.process.returncode is not None:
            self.process = await _start()
        process = self.process
        try:
            self._refuse_if_closed()  # it may have been closed while the process was started
            async with asyncio.timeout(JOB_SECONDS):
                return await _exchange(process, {**request, "cpu_seconds": self.cpu_seconds}, body)
        except BaseException:
            # An incomplete request or answer may be in the pipes: the next body gets a new process.
            self.process = None
            await asyncio.shield(kill_and_wait(process))
            raise

    def _refuse_if_closed(self) -> None:
        """Raise `EOFError` if `aclose` was called."""
        if self._is_closed:
            raise EOFError("no bodies are parsed any more")

    async def aclose(self) -> None:
        """End the process: a running job fails, and so does any later one. May be called twice."""
        self._is_closed = True
        process, self.process = self.process, None
        if process is not None:
            await kill_and_wait(process)


def _milliseconds(seconds: float) -> int:
    """Return a number of seconds as whole milliseconds."""
    return round(seconds * 1000)


def _run_job(job: str, body: bytes, options: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Run a job of `JOBS` in this process, and return its result as a JSON object and bytes.

    Raises `ProxyRefused` if the job refuses the body.
    """
    try:
        return JOBS[job](body, options)
    except NotStrictJson as error:
        raise ProxyRefused(error_responses.malformed(str(error))) from None


# The host's side of the pipes. A request and an answer are a line of JSON and as many bytes as it says.


async def _start() -> asyncio.subprocess.Process:
    """Start a process that runs `serve` of this module, without the secrets of the host's environment."""
    # Only the variables that Python needs to start are passed on.
    names = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "SYSTEMROOT")
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=MAX_HEAD_BYTES,
        env={name: os.environ[name] for name in names if name in os.environ},
        start_new_session=True,  # Ctrl+C in a terminal is for the host, which then ends the child itself
    )


async def _exchange(
    child: asyncio.subprocess.Process, request: dict[str, Any], body: bytes
) -> tuple[dict[str, Any], bytes]:
    """Send a request with its body to a child process; return its JSON answer and the bytes after it.

    The member `size` of each is the number of bytes that follow. Raises `EOFError` if the process has ended.
    """
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(_json_line({**request, "size": len(body)}))
    child.stdin.write(body)
    await child.stdin.drain()
    line = await child.stdout.readline()
    if not line:
        raise EOFError("the parsing process has ended")
    answer = json.loads(line)
    return answer, await child.stdout.readexactly(answer["size"])


# The child


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer the host's requests from one pipe on another, until the first is closed. The child runs this.

    A request that takes more than its `cpu_seconds` of processor time ends the process by a signal. The
    signal's default action needs no Python code, which would not run while a C function works.
    """
    while line := requests.readline():
        request = json.loads(line)
        body = requests.read(request["size"])
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])
        answer, payload = _answer(request, body)
        signal.setitimer(signal.ITIMER_PROF, 0)  # stops the timer
        spent_ms = _milliseconds(time.process_time() - started)
        answers.write(_json_line({**answer, "ms": spent_ms, "size": len(payload)}))
        answers.write(payload)
        answers.flush()


def _answer(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Run the job of a request, and return the answer as a JSON object and bytes.

    The object has the result as "found", or a refusal of the body as "refusal", without bytes.
    """
    try:
        result, payload = _run_job(request["job"], body, request["options"])
    except ProxyRefused as error:
        refusal = asdict(error.refusal)
        refusal["headers"] = [(name.decode(), value.decode()) for name, value in error.refusal.headers]
        return {"refusal": refusal}, b""
    return {"found": result}, payload


def _json_line(fields: dict[str, Any]) -> bytes:
    """Return the fields as one line of JSON."""
    return json.dumps(fields).encode() + b"\n"


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
