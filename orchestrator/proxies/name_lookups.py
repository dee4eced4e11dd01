"""Look host names up in separate threads.

A lookup in the C library cannot be stopped, and a silent name server makes it last for half a minute. A few
would occupy all threads of the event loop's pool, which asyncio's own lookups and the rest of the host use.
The threads are daemons, so that none delays the end of the program.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from contextlib import suppress

LOOKUPS = 64
"""Names that are looked up at once. Each takes a thread, which mostly sleeps."""
LOOKUPS_A_SHARE = 4
"""Names that are looked up at once for one group or one server; the rest of its names wait."""
LOOKUP_SECONDS = 8.0
"""Seconds that a lookup may take, including its wait. The C library asks a second name server after 5."""


class LookupRefused(OSError):
    """A name has no answer in time, or cannot be looked up now. Its text says which."""


class NameLookups:
    """Limits the lookups of several parties, so that no party makes all others wait."""

    def __init__(self, *, lookups: int = LOOKUPS, lookup_seconds: float = LOOKUP_SECONDS) -> None:
        """`lookups` run at once at most; each may take `lookup_seconds`, including its wait."""
        self._free = lookups
        """Lookups of all parties together that may still be started."""
        self._seconds = lookup_seconds
        self._shares: dict[str, asyncio.Semaphore] = {}
        """The lookups that each party may still start."""

    async def look_up(self, host: str, port: int, *, share: str) -> list[str]:
        """Return the IP addresses of a host, each once. A host that is an address is returned as it is.

        `share` names the party, such as a group, for which the host is looked up; only `LOOKUPS_A_SHARE` of
        its lookups run at once, and the rest wait.

        Raises:
            LookupRefused: no answer came in time, or too many lookups are running.
            OSError: the host has no address.
        """
        if _is_address(host):
            return [host]
        share_limit = self._shares.setdefault(share, asyncio.Semaphore(LOOKUPS_A_SHARE))
        try:
            async with asyncio.timeout(self._seconds):
                await share_limit.acquire()
                # It releases `share_limit` when the lookup has ended.
                return await self._start_lookup(host, port, share_limit)
        except TimeoutError:
            raise LookupRefused("the name was not looked up in time: its name server may be silent") from None

    def _start_lookup(
        self, host: str, port: int, share_limit: asyncio.Semaphore
    ) -> asyncio.Future[list[str]]:
        """Start to look a host up in a thread, and return a future with its addresses or its `OSError`.

        The caller has acquired `share_limit`, the semaphore of the party. It is released when the thread
        ends, not at a timeout, because a timeout does not end the thread.

        Raises:
            LookupRefused: no thread can be started now; the semaphore is released.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[list[str]] = loop.create_future()

        def finish(addresses: list[str], error: OSError | None) -> None:
            """Let another lookup start, and set the result of this one unless nobody waits any more.

            `error` is the reason if there are no addresses, else None.
            """
            # Only the event loop changes the counts, so they need no lock.
            self._free += 1
            share_limit.release()
            if result.done():  # cancelled by a timeout
                return
            if error is None:
                result.set_result(addresses)
            else:
                result.set_exception(error)

        def work() -> None:
            """Look the host up, and pass the result to the event loop."""
            addresses, error = _look_up(host, port)
            with suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(finish, addresses, error)

        if self._free and _try_to_start(threading.Thread(target=work, name="name-lookup", daemon=True)):
            self._free -= 1
            return result
        # As many lookups run as may, or this machine can start no further thread.
        share_limit.release()
        raise LookupRefused("too many names are being looked up: try again in a minute")


def _is_address(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _try_to_start(thread: threading.Thread) -> bool:
    """Start a thread; return False if this machine can start no more."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _look_up(host: str, port: int) -> tuple[list[str], OSError | None]:
    """Return the IP addresses of a host, each once, and the error if there are none, else None. Blocks."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except OSError as error:
        return [], error
    except Exception as error:  # noqa: BLE001 - such as UnicodeError; raised, it would leave the caller waiting
        return [], OSError(str(error))
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries)), None
