"""A process that stands for one which a template forks: its streams, its signals and its end are passed on.

    python -I -S fork_relay.py SOCKET (-m MODULE | -c CODE) [ARGUMENT…]

It imports next to nothing, for to start it is all that is left of the cost.
"""

import _socket
import marshal
import os
import select
import signal
import sys
from array import array

template = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
# A signal that comes before the order was given waits.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
template.connect(sys.argv[1])
order = marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd()))  # noqa: PTH109
template.sendmsg([order], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array("i", (0, 1, 2)))])
# Without it, a signal that comes just before the wait below would be passed on only after it.
woken, wakeup = os.pipe()
os.set_blocking(wakeup, False)
signal.set_wakeup_fd(wakeup)
signal.signal(signal.SIGTERM, lambda number, _: template.send(b"%d" % number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
# Whoever is at the other end of a stream has to see it end with the process that uses it.
nothing = os.open(os.devnull, os.O_RDWR)
for stream in range(3):
    os.dup2(nothing, stream)
while template not in select.select([template, woken], [], [])[0]:
    os.read(woken, 16)
code = int(template.recv(16) or b"1")
if code < 0:
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
