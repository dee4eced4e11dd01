"""Lists the commands of `andy`: name, where each is, and its line in `andy --help`.

Only the standard library is imported here. So `andy --help` answers without loading a command, and a command
loads nothing of the others.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from dataclasses import dataclass

ABOUT = "A personal assistant that lives in group chats, one container a group."
HELP_FLAGS = ("--help", "-h")
VERSION_FLAGS = ("--version", "-V")
FLAG_ROWS = (
    ("--help (-h)", "Display this message and exit."),
    ("--version (-V)", "Display application version."),
)


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command, or a family of them, which is imported when it is called.

    `target` is `module:name` in `orchestrator.cli`: a function, or a Cyclopts `App`, then named `…_app`.
    `summary` is what the docstring of the function begins with.
    """

    name: str
    target: str
    summary: str


COMMANDS = (
    CommandEntry("approvals", "approvals:approvals_app", "What agents ask to be allowed, and your answer."),
    CommandEntry(
        "audit", "accounts:audit_app", "What was asked, refused and reached, as it was written then."
    ),
    CommandEntry(
        "backup",
        "backup:backup",
        "Write all that a home cannot do without to one file, also while Andy runs.",
    ),
    CommandEntry("budget", "accounts:budget_app", "How much may be used of the model, in tokens or money."),
    CommandEntry("channels", "channels:channels_app", "The messengers that Andy answers on."),
    CommandEntry("chat", "chat:chat", "Write to a group from this terminal and read its replies."),
    CommandEntry("context", "context:context_app", "What conversations were about, and how they go on."),
    CommandEntry("cron", "tasks:cron_app", "Everything that is to happen at a time."),
    CommandEntry(
        "dashboard",
        "dashboard:dashboard_app",
        "What a group has to do, what is open, and what it is told when.",
    ),
    CommandEntry(
        "demo",
        "demo:demo",
        "Show a message going all the way, on a home of its own, with no key and no phone.",
    ),
    CommandEntry("doctor", "doctor:doctor", "Look for what is wrong, and say how to mend it."),
    CommandEntry(
        "events", "activity:events", "Show what happened lately on a running Andy, and what happens."
    ),
    CommandEntry("groups", "groups:groups_app", "The chats that have an agent."),
    CommandEntry("image", "up:image_app", "The agents' container image."),
    CommandEntry("logs", "logs:logs", "Show what a group's container did and said: its newest run."),
    CommandEntry("loop", "loop:loop_app", "Agents that wake by themselves."),
    CommandEntry("mcp", "mcp:mcp_app", "Servers of yours that agents may call, with secrets they never see."),
    CommandEntry(
        "messages",
        "activity:messages",
        "List a group's newest messages with what became of each, or all that befell one.",
    ),
    CommandEntry(
        "nodes",
        "nodes:nodes_app",
        "The machines of a swarm: what runs there, what is wrong, and their image.",
    ),
    CommandEntry(
        "notices",
        "notices:notices_app",
        "What agents are to notice later: their own notes, and facts of the host.",
    ),
    CommandEntry("open", "web:open_console", "Open the console in a browser, signed in."),
    CommandEntry("outbox", "activity:outbox_app", "What is on its way to a chat."),
    CommandEntry(
        "reminders", "reminders:reminders_app", "Texts that Andy sends to a chat at a time, word for word."
    ),
    CommandEntry("restore", "backup:restore", "Put a backup in place while Andy is stopped."),
    CommandEntry(
        "say", "chat:say_as_andy", "Speak in a group as Andy; its agent reads it as what Andy said."
    ),
    CommandEntry(
        "search",
        "search:search",
        "Find messages of all groups by their words or parts of them, the newest first.",
    ),
    CommandEntry("service", "service:service_app", "Andy as a service of systemd."),
    CommandEntry("sessions", "web:sessions_app", "The browsers that are signed in to the console."),
    CommandEntry("setup", "setup:setup", "Set Andy up: a model, messengers, the main group, a test message."),
    CommandEntry("status", "activity:status", "Tell what runs, waits and is stuck."),
    CommandEntry("tasks", "tasks:tasks_app", "What agents are asked at a time, or again and again."),
    CommandEntry("turns", "activity:turns", "List what agents were asked, newest first."),
    CommandEntry("up", "up:up", "Run Andy until Ctrl-C or SIGTERM."),
    CommandEntry(
        "usage",
        "accounts:usage",
        "Tell what was used of the model, what it cost, about, and how the budgets stand.",
    ),
    CommandEntry("voice", "voice:voice_app", "Voice notes, written down on this machine."),
    CommandEntry("whatsapp", "whatsapp:whatsapp_app", "The WhatsApp account that Andy answers on."),
)


def asks_for_help(words: list[str]) -> bool:
    """Whether the words after `andy` ask for the list of all commands: none at all, or a help flag first."""
    return not words or words[0] in HELP_FLAGS


def help_page(*, width: int | None = None) -> str:
    """Return the page of `andy --help`, `width` columns wide (as wide as the terminal where none is given).

    It is drawn as Cyclopts draws the pages of single commands; to load Cyclopts takes ten times as long.
    """
    columns = width or shutil.get_terminal_size().columns
    rows = [*((one.name, one.summary) for one in COMMANDS), *FLAG_ROWS]
    names = max(len(name) for name, _ in rows)
    inside = max(20, columns - names - 6)  # two borders, two blanks beside them, two between the columns
    lines = []
    for name, summary in rows:
        for number, part in enumerate(textwrap.wrap(summary, inside)):
            lines.append(f"{name if number == 0 else '':{names}}  {part:{inside}}")
    head = ["Usage: andy COMMAND", "", *textwrap.wrap(ABOUT, columns), ""]
    return "\n".join((*head, *_boxed("Commands", lines), ""))


def _boxed(title: str, lines: list[str]) -> list[str]:
    inner = len(lines[0]) + 2
    box = [
        f"╭─ {title} {'─' * (inner - len(title) - 3)}╮",
        *(f"│ {line} │" for line in lines),
        f"╰{'─' * inner}╯",
    ]
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if encoding.lower().replace("-", "").startswith("utf"):
        return box
    plain = str.maketrans("╭╮╰╯│─", "++++|-")
    return [line.translate(plain) for line in box]
