"""Keep agents away from what the host serves to others, by a rule of its firewall for the agents' bridge.

A bridge without a way out still leads to the host itself, and so to whatever listens on any address of it
that is not loopback: its address in the local network, Docker's own bridge, another install's proxy. With
the rule, the proxies of this install are all that is left. Setting it takes root or CAP_NET_ADMIN.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.domain.errors import ContainerError

WAIT_SECONDS = 5
"""Seconds to wait for another program that changes the firewall at the same time."""
CALL_SECONDS = 20
ADMIN_PATH = "/usr/sbin:/sbin"


class FirewallOutOfReach(ContainerError):
    """The host's firewall cannot be read or changed by this user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Firewall:
    """The rule of one install. `bridge` is the interface of its network, `gateway` the host's address there.

    All of it blocks.
    """

    install: str
    bridge: str
    gateway: str

    @property
    def chain(self) -> str:
        return f"ANDY-{self.install}"[:28]  # the kernel takes no longer names

    def apply(self, ports: Collection[int]) -> None:
        """Let agents reach these ports of the gateway, and nothing else of the host. Safe to call again.

        Raises:
            FirewallOutOfReach: this user may not, or there is no such bridge on this machine.
        """
        if not Path("/sys/class/net", self.bridge).exists():
            raise FirewallOutOfReach(f"the bridge {self.bridge} is not on this machine")
        if not self.is_there():
            self._call("-N", self.chain)
        # The old rules go only once the new ones stand before them, so that no moment is open.
        old = self._rules()
        for number, rule in enumerate(self._wanted(ports), start=1):
            self._call("-I", self.chain, str(number), *rule)
        for _ in old:
            self._call("-D", self.chain, str(len(ports) + 2))
        others = self._jumps()  # also of an earlier bridge, which is gone
        self._call("-I", *self._jump)
        for one in others:
            self._call("-D", *one)

    def remove(self) -> None:
        """Take the rule away. One that is not there is no error. Raises `FirewallOutOfReach`."""
        if not self.is_there():
            return
        for one in self._jumps():
            self._call("-D", *one)
        self._call("-F", self.chain)
        self._call("-X", self.chain)

    def is_there(self) -> bool:
        """Tell whether there is a chain of this install, on whatever bridge, as far as this user can see."""
        return self._succeeds("-n", "-L", self.chain)

    def is_applied(self) -> bool:
        """Tell whether the rule is in force. Raises `FirewallOutOfReach` when it cannot be told."""
        self._call("-n", "-L", "INPUT")  # tells that it can be read, which the next does not
        return self._succeeds("-C", *self._jump) and bool(self._rules())

    def commands(self, ports: Collection[int]) -> str:
        """Return the commands that root may type instead, in one line."""
        calls = [("-N", self.chain), *(("-A", self.chain, *rule) for rule in self._wanted(ports))]
        return " && ".join(" ".join(("iptables", *call)) for call in (*calls, ("-I", *self._jump)))

    @property
    def _jump(self) -> tuple[str, ...]:
        return ("INPUT", "-i", self.bridge, "-j", self.chain)

    def _wanted(self, ports: Collection[int]) -> Sequence[tuple[str, ...]]:
        # A return leaves the word to the owner's own rules, which may be stricter.
        accepted = [
            ("-d", self.gateway, "-p", "tcp", "--dport", str(port), "-j", "RETURN") for port in sorted(ports)
        ]
        return [*accepted, ("-j", "REJECT")]

    def _jumps(self) -> list[list[str]]:
        """Return the rules that lead to the chain, each as its iptables arguments."""
        rules = [line.split()[1:] for line in self._call("-S", "INPUT").splitlines()]
        return [words for words in rules if words[-1] == self.chain]

    def _rules(self) -> list[str]:
        return [line for line in self._call("-S", self.chain).splitlines() if line.startswith("-A")]

    def _succeeds(self, *words: str) -> bool:
        return _iptables(*words).returncode == 0

    def _call(self, *words: str) -> str:
        done = _iptables(*words)
        if done.returncode != 0:
            reason = " ".join(done.stderr.split()) or f"iptables ended with {done.returncode}"
            raise FirewallOutOfReach(reason)
        return done.stdout


def _iptables(*words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("iptables", path=f"{os.environ.get('PATH', '')}:{ADMIN_PATH}")
    if program is None:
        raise FirewallOutOfReach("there is no iptables on this machine")
    try:
        return subprocess.run(
            [program, "-w", str(WAIT_SECONDS), *words],
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FirewallOutOfReach(f"iptables does not answer ({error})") from error
