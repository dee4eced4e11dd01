"""Keep agents away from the host's other services, by a firewall rule for the agents' bridge.

A bridge without a way out still leads to the host itself, and so to whatever listens on a non-loopback
address: in the local network, on Docker's own bridge, or another install's proxy. With the rule, only the
proxies of this install can be reached. Setting it needs root or CAP_NET_ADMIN.
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
"""Folders of administration programs, which an ordinary user's search path may lack."""


class FirewallOutOfReach(ContainerError):
    """The host's firewall cannot be read or changed by this user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Firewall:
    """The rule of one install. `bridge` is the interface of its network, `gateway` the host's address there.

    All methods but `commands` block while they run iptables.
    """

    install: str
    bridge: str
    gateway: str

    @property
    def chain(self) -> str:
        """The name of this install's chain of rules."""
        return f"ANDY-{self.install}"[:28]  # the kernel refuses a longer name

    def apply(self, ports: Collection[int]) -> None:
        """Let agents reach these TCP ports of the gateway, and nothing else of the host.

        May be called again, such as with other ports: the new rules replace the old ones.

        Raises:
            FirewallOutOfReach: this user may not change the firewall, or this machine has no such bridge.
        """
        if not Path("/sys/class/net", self.bridge).exists():
            raise FirewallOutOfReach(f"the bridge {self.bridge} is not on this machine")
        if not self.exists():
            self._call("-N", self.chain)
        # The old rules are removed only after the new ones are in force, so that nothing is open in between.
        old_rules = self._rules()
        for number, rule in enumerate(self._new_rules(ports), start=1):
            self._call("-I", self.chain, str(number), *rule)
        first_old = len(ports) + 2  # after one new rule for each port and the rejection of all others
        for _ in old_rules:  # each deletion moves the next old rule to this number
            self._call("-D", self.chain, str(first_old))
        old_jumps = self._jumps()  # also those for an earlier bridge, which is gone
        self._call("-I", *self._jump)
        for jump in old_jumps:
            self._call("-D", *jump)

    def remove(self) -> None:
        """Remove this install's chain and the rules that jump to it; a missing chain is no error.

        Raises:
            FirewallOutOfReach: this user may not change the firewall.
        """
        if not self.exists():
            return
        for jump in self._jumps():
            self._call("-D", *jump)
        self._call("-F", self.chain)
        self._call("-X", self.chain)

    def exists(self) -> bool:
        """Return whether a chain of this install exists, for whatever bridge, as far as this user can see."""
        return self._succeeds("-n", "-L", self.chain)

    def is_applied(self) -> bool:
        """Return whether the rule is in force. Raises `FirewallOutOfReach` when that cannot be determined."""
        self._call("-n", "-L", "INPUT")  # raises if the firewall cannot be read; the next call returns False
        return self._succeeds("-C", *self._jump) and bool(self._rules())

    def commands(self, ports: Collection[int]) -> str:
        """Return one line of iptables commands by which root can make the same rules as `apply` does."""
        calls = [("-N", self.chain), *(("-A", self.chain, *rule) for rule in self._new_rules(ports))]
        return " && ".join(" ".join(("iptables", *call)) for call in (*calls, ("-I", *self._jump)))

    @property
    def _jump(self) -> tuple[str, ...]:
        """Return the arguments of the rule in `INPUT` that sends the bridge's packets to the chain."""
        return ("INPUT", "-i", self.bridge, "-j", self.chain)

    def _new_rules(self, ports: Collection[int]) -> Sequence[tuple[str, ...]]:
        """Return the rules of the chain, each as its iptables arguments.

        They are one rule for each of the ports, and at the end the rejection of everything else.
        """
        # RETURN leaves the decision to the owner's own rules, which may be stricter.
        accepted = [
            ("-d", self.gateway, "-p", "tcp", "--dport", str(port), "-j", "RETURN") for port in sorted(ports)
        ]
        return [*accepted, ("-j", "REJECT")]

    def _jumps(self) -> list[list[str]]:
        """Return the rules that jump to the chain, each as its iptables arguments."""
        # Each line is such as `-A INPUT -i br-1a2b -j ANDY-3c4d`; the first word is left out.
        rules = [line.split()[1:] for line in self._call("-S", "INPUT").splitlines()]
        return [arguments for arguments in rules if arguments[-1] == self.chain]

    def _rules(self) -> list[str]:
        """Return the present rules of the chain, each as a line of iptables."""
        return [line for line in self._call("-S", self.chain).splitlines() if line.startswith("-A")]

    def _succeeds(self, *arguments: str) -> bool:
        """Return whether iptables accepts these arguments."""
        return _iptables(*arguments).returncode == 0

    def _call(self, *arguments: str) -> str:
        """Run iptables with these arguments and return its output.

        Raises:
            FirewallOutOfReach: iptables cannot be run, or fails.
        """
        completed = _iptables(*arguments)
        if completed.returncode != 0:
            reason = " ".join(completed.stderr.split()) or f"iptables ended with {completed.returncode}"
            raise FirewallOutOfReach(reason)
        return completed.stdout


def _iptables(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run iptables with these arguments, and return its exit code and output.

    Raises:
        FirewallOutOfReach: iptables is missing, or does not end in time.
    """
    program = shutil.which("iptables", path=f"{os.environ.get('PATH', '')}:{ADMIN_PATH}")
    if program is None:
        raise FirewallOutOfReach("there is no iptables on this machine")
    try:
        return subprocess.run(
            [program, "-w", str(WAIT_SECONDS), *arguments],
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FirewallOutOfReach(f"iptables does not answer ({error})") from error
