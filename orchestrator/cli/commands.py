"""Lists the commands of `andy` with their line in `andy --help`, and the commands for a person's purposes.

Only the standard library is imported here, so that `andy --help` loads no command, and a command loads none
of the others.
"""

from __future__ import annotations

import difflib
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ABOUT = "A personal assistant for group chats, one container for each group."
HELP_FLAGS = ("--help", "-h")
HELP_COMMAND = "help"
VERSION_FLAGS = ("--version", "-V")
FLAG_ROWS = (
    ("help COMMAND", "Show the page of one command."),
    ("--help (-h)", "Show this page."),
    ("--version (-V)", "Show the version of Andy."),
)
TALK, LOOK, CHANGE, CARE = "Talk", "Look", "Change", "Care"
TOPICS = (TALK, LOOK, CHANGE, CARE)
"""Headings of `andy --help`, in order."""
OPTIONS = "Options"
LEAST_LIKENESS = 0.75
"""The least similarity, up to 1, of a mistyped word to the command that is suggested for it."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command, or a family of them, which is imported when it is called.

    `target` is `module:name` in `orchestrator.cli`: a function, or a Cyclopts `App`, then named `…_app`.
    `summary` is the beginning of the function's docstring.
    """

    name: str
    target: str
    topic: str
    summary: str


COMMANDS = (
    CommandEntry("approvals", "approvals:approvals_app", CHANGE, "Answer agents that ask for your approval."),
    CommandEntry(
        "audit",
        "accounts:audit_app",
        LOOK,
        "Read the record of requests that left containers, and of refusals.",
    ),
    CommandEntry("backup", "backup:backup", CARE, "Write a home to one file, also while Andy runs."),
    CommandEntry("budget", "accounts:budget_app", CHANGE, "Limit the use of the model, in tokens or money."),
    CommandEntry(
        "calendar",
        "calendar:calendar_app",
        CHANGE,
        "Show reminders and tasks in calendar programs, and let groups follow calendars.",
    ),
    CommandEntry("channels", "channels:channels_app", CHANGE, "Add, remove and check messengers."),
    CommandEntry("chat", "chat:chat", TALK, "Write to a group from this terminal and read its replies."),
    CommandEntry(
        "completion",
        "completion:completion",
        CARE,
        "Print what a shell needs in order to complete Andy's commands and options.",
    ),
    CommandEntry(
        "context", "context:context_app", LOOK, "Show, correct and restore the memory of conversations."
    ),
    CommandEntry("cron", "tasks:cron_app", LOOK, "List everything that happens at a set time."),
    CommandEntry(
        "dashboard", "dashboard:dashboard_app", LOOK, "Show the tasks, questions and notifications of groups."
    ),
    CommandEntry(
        "demo",
        "demo:demo",
        CARE,
        "Show the way of a message to its reply in a home of its own, without a key or a phone.",
    ),
    CommandEntry("doctor", "doctor:doctor", CARE, "Look for faults, and name the fix of each."),
    CommandEntry("events", "activity:events", LOOK, "Show the latest events of a running Andy."),
    CommandEntry(
        "export", "backup:export", CARE, "Write a group's data to a folder in forms that people can read."
    ),
    CommandEntry("groups", "groups:groups_app", CHANGE, "Register chats, configure and remove them."),
    CommandEntry(
        "hooks", "hooks:hooks_app", CHANGE, "Let a program post texts to one group, and do nothing else."
    ),
    CommandEntry("image", "up:image_app", CARE, "Build and push the agents' container image."),
    CommandEntry(
        "import",
        "backup:import_",
        CARE,
        "Take over groups, notes, scheduled tasks and messages from another assistant's home.",
    ),
    CommandEntry("logs", "logs:logs", LOOK, "Show the log of a group's newest container, or of the host."),
    CommandEntry("loop", "loop:loop_app", CHANGE, "Let a group's agent wake by itself."),
    CommandEntry("mcp", "mcp:mcp_app", CHANGE, "Connect MCP servers, whose secrets agents never see."),
    CommandEntry(
        "messages",
        "activity:messages",
        LOOK,
        "List a group's newest messages with their outcome, or the history of one.",
    ),
    CommandEntry("models", "models:models_app", CHANGE, "Add, test and choose model services."),
    CommandEntry(
        "nodes", "nodes:nodes_app", LOOK, "List the machines of a swarm, and copy the agents' image to them."
    ),
    CommandEntry(
        "notices",
        "notices:notices_app",
        LOOK,
        "List the notices that wait for a group's agent: its own notes and facts of the host.",
    ),
    CommandEntry("open", "web:open_console", LOOK, "Open the console in a browser, signed in."),
    CommandEntry(
        "outbox", "activity:outbox_app", LOOK, "List messages that have not been sent, and retry them."
    ),
    CommandEntry(
        "reminders", "reminders:reminders_app", CHANGE, "Set and list texts that Andy sends at a time."
    ),
    CommandEntry("restore", "backup:restore", CARE, "Put a backup in place while Andy is stopped."),
    CommandEntry(
        "say",
        "chat:say_as_andy",
        TALK,
        "Send a text to a group as Andy; its agent reads it as Andy's own.",
    ),
    CommandEntry(
        "search",
        "search:search",
        LOOK,
        "Find messages of all groups by their words or parts of them, the newest first.",
    ),
    CommandEntry("service", "service:service_app", CARE, "Run Andy as a service of systemd."),
    CommandEntry(
        "sessions", "web:sessions_app", CHANGE, "List browsers that are signed in, and sign them out."
    ),
    CommandEntry("settings", "completion:settings_app", CARE, "Print the schema of andy.toml for editors."),
    CommandEntry(
        "setup", "setup:setup", CARE, "Set Andy up: a model, messengers, the main group, a test message."
    ),
    CommandEntry("status", "activity:status", LOOK, "Show what runs, waits and is stuck."),
    CommandEntry("tasks", "tasks:tasks_app", CHANGE, "Schedule requests to agents, once or repeatedly."),
    CommandEntry("turns", "activity:turns", LOOK, "List requests to agents, newest first."),
    CommandEntry("undo", "undo:undo", CHANGE, "Take back what a turn did."),
    CommandEntry(
        "uninstall",
        "uninstall:uninstall",
        CARE,
        "Remove Andy's service, containers and networks, and say what stays.",
    ),
    CommandEntry("up", "up:up", CARE, "Run Andy until Ctrl-C or SIGTERM."),
    CommandEntry(
        "usage", "accounts:usage", LOOK, "Show tokens, estimated costs, and the used part of each budget."
    ),
    CommandEntry("voice", "voice:voice_app", CARE, "Install and check the transcription of voice notes."),
    CommandEntry(
        "whatsapp", "whatsapp:whatsapp_app", CHANGE, "Pair the WhatsApp account that Andy answers on."
    ),
)


@dataclass(frozen=True, slots=True)
class Intent:
    """A purpose that a person may have, with the commands for it."""

    purpose: str
    """The text after "To …"."""
    answer: str
    """The text about what to type, with commands in single quotes."""
    words: tuple[str, ...] = ()
    """Words that people try as commands for it, and that are none."""


EXAMPLE_GROUP = "family"
"""The group that answers use as an example until another one is named."""

INTENTS = (
    Intent("set Andy up", "'andy setup'", ("install", "init", "onboard")),
    Intent("see it work without a key", "'andy demo'", ("try", "example", "test")),
    Intent(
        "start Andy", "'andy up'; with Compose 'docker compose up -d'", ("start", "run", "serve", "daemon")
    ),
    Intent(
        "stop Andy",
        "Ctrl-C in the terminal of 'andy up'; 'systemctl --user stop andy' for a service;"
        " 'docker compose stop' with Compose",
        ("stop", "down", "quit", "exit", "shutdown", "kill", "end"),
    ),
    Intent(
        "restart Andy",
        "stop it, then 'andy up'; 'systemctl --user restart andy' for a service;"
        " 'docker compose restart andy' with Compose",
        ("restart", "reload", "reboot"),
    ),
    Intent(
        "start Andy with the machine",
        "'andy service install'; with Compose it starts by itself",
        ("autostart", "enable", "systemd"),
    ),
    Intent(
        "upgrade Andy",
        "stop it, 'git pull', 'make setup', 'andy up';"
        " with Compose 'git pull' and 'docker compose up -d --build';"
        " without a clone 'pipx upgrade andy-assistant', 'uv tool upgrade andy-assistant' or, with Compose,"
        " the new docker-compose.yml and 'docker compose up -d'",
        ("upgrade", "update"),
    ),
    Intent(
        "uninstall Andy",
        "'andy uninstall'; with Compose 'docker compose down --volumes'",
        ("purge", "remove-andy"),
    ),
    Intent(
        "change a setting",
        "write it into .env, one NAME=value a line (docs/settings.md has all names);"
        " 'andy groups config family' shows those of one group",
        ("config", "setting", "set", "configure", "env", "preferences", "get"),
    ),
    Intent(
        "give Andy a key of the model service",
        "ANTHROPIC_API_KEY=… in .env, or 'andy setup'; 'andy doctor --online' checks it",
        ("key", "keys", "login", "auth", "token", "credential", "credentials", "apikey"),
    ),
    Intent(
        "choose the model",
        "'andy models use SERVICE/MODEL', for one group with --group; 'andy models --help' adds services",
        ("model", "llm", "provider"),
    ),
    Intent("set the time zone", "TZ=Europe/Berlin in .env", ("tz", "timezone", "zone", "time", "clock")),
    Intent(
        "connect WhatsApp",
        "'andy whatsapp pair'",
        ("pair", "qr", "link", "connect"),
    ),
    Intent(
        "disconnect WhatsApp",
        "'andy channels remove whatsapp', then remove the device on the phone, under Linked devices",
        ("unpair", "logout", "unlink", "disconnect"),
    ),
    Intent(
        "connect Telegram or Matrix",
        "'andy channels add telegram' or 'andy channels add matrix'",
        ("telegram", "matrix", "channel", "messenger", "messengers"),
    ),
    Intent(
        "give a chat an agent",
        "'andy groups register family'",
        ("register", "join", "add", "group", "new", "create"),
    ),
    Intent(
        "let a chat that calls come in, or block it",
        "'andy groups chats', then 'andy groups decide 3 register'",
        ("stranger", "strangers", "accept", "ignore", "request", "requests"),
    ),
    Intent(
        "take a chat's agent away", "'andy groups remove family'", ("unregister", "leave", "remove", "delete")
    ),
    Intent(
        "decide who may call Andy",
        "'andy groups people family' shows and sets roles, see Roles in docs/groups.md",
        ("senders", "users", "block", "ban", "permissions", "trigger", "triggers", "people", "roles", "role"),
    ),
    Intent(
        "show a group a folder of yours",
        "the key mounts of 'andy groups config family', see Folders of yours in docs/security.md",
        ("mount", "mounts", "folder", "folders", "share"),
    ),
    Intent("talk to Andy", "'andy chat main'", ("talk", "ask", "send", "prompt", "shell")),
    Intent(
        "find a message",
        "'andy messages family', or 'andy search dentist'",
        ("message", "find", "history", "inbox"),
    ),
    Intent("see what runs", "'andy status'", ("ps", "list", "ls", "show", "info", "state", "containers")),
    Intent(
        "stop a turn that runs or waits",
        "'@Andy stop' in its chat, or 'andy open', page Now",
        ("abort", "interrupt"),
    ),
    Intent(
        "find out what is wrong", "'andy doctor'", ("check", "health", "diagnose", "debug", "fix", "repair")
    ),
    Intent("read the log", "'andy logs', or 'andy logs family'", ("log", "tail", "journal")),
    Intent("see what it costs", "'andy usage'", ("cost", "costs", "price", "money", "billing", "spend")),
    Intent("limit what it may cost", "'andy budget set 5usd --per day'", ("limit", "limits", "quota")),
    Intent(
        "set a reminder",
        '\'andy reminders add family "bins out" --at "tomorrow 8am"\'',
        ("remind", "reminder", "timer", "alarm"),
    ),
    Intent(
        "cancel a reminder or a scheduled task",
        "'andy reminders cancel ID' or 'andy tasks cancel ID'",
        ("cancel", "pause"),
    ),
    Intent(
        "ask an agent again and again",
        "'andy tasks add family \"news\" --every 1d'",
        ("schedule", "task", "job", "jobs"),
    ),
    Intent("see what is to come", "'andy cron list'", ("upcoming", "coming", "agenda", "timetable")),
    Intent("see what is to be done", "'andy dashboard show family'", ("todo", "todos", "board", "questions")),
    Intent(
        "begin a conversation anew",
        "write /clear in the chat, or 'andy context reset family --yes'",
        ("reset", "clear", "forget", "memory", "compact"),
    ),
    Intent(
        "allow or refuse a request of an agent",
        "'andy approvals list'",
        ("allow", "approve", "refuse", "deny"),
    ),
    Intent("open the console in a browser", "'andy open'", ("console", "web", "ui", "browser", "gui")),
    Intent("build the agents' image", "'andy image build'", ("build", "docker")),
    Intent(
        "save everything to a file",
        "'andy backup backups/andy.tar.gz'; with Compose the file is '/andy/backups/andy.tar.gz'",
        ("save", "dump"),
    ),
    Intent(
        "bring it back from a file",
        "'andy restore backups/andy.tar.gz'; with Compose the console's page Care",
        ("load",),
    ),
    Intent(
        "teach agents a skill",
        "a folder in skills/, see docs/skills.md",
        ("skill", "skills", "plugin", "plugins"),
    ),
    Intent("see the version", "'andy --version'", ("version", "about")),
)

SYNONYMS = (
    ("add", "register", "create", "new", "set"),
    ("remove", "cancel", "delete", "rm"),
    ("show", "list", "ls"),
)
"""Words for the same action, of which a family of commands has one or two."""


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether the arguments request the list of all commands: none at all, or a help option."""
    return not arguments or arguments[0] in HELP_FLAGS or list(arguments) == [HELP_COMMAND]


def expand_help(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `help COMMAND` replaced by `COMMAND --help`."""
    if len(arguments) > 1 and arguments[0] == HELP_COMMAND:
        return [*arguments[1:], "--help"]
    return [*arguments]


def hint_for(
    name: str, later_words: Sequence[str] = (), *, is_group: Callable[[str], bool] | None = None
) -> str:
    """Return a sentence for a command that does not exist: the command for its purpose, or a similar name.

    The result is empty if neither is known. `later_words` are the arguments after the command. A group that
    they name replaces the example in the sentence; `is_group` returns whether a word is the folder of a
    group.
    """
    for intent in INTENTS:
        if name.lower() in intent.words:
            # To register a group its folder is still free, so any word that may be one counts.
            is_new = "groups register" in intent.answer
            example_group = next(
                (
                    word
                    for word in later_words
                    if (is_new and word.isidentifier()) or (is_group is not None and is_group(word))
                ),
                EXAMPLE_GROUP,
            )
            return f"To {intent.purpose}: {intent.answer.replace(EXAMPLE_GROUP, example_group)}."
    similar = difflib.get_close_matches(name, [entry.name for entry in COMMANDS], n=1, cutoff=LEAST_LIKENESS)
    return f"Did you mean 'andy {similar[0]}'?" if similar else ""


def hint_within(family: str, word: str, command_names: Sequence[str]) -> str:
    """Return a sentence for a word that is no command of a family, such as `groups`.

    The sentence has the command with the same meaning or a similar name, else all commands of the family.
    `command_names` are the names of the family's commands.
    """
    synonyms = next((names for names in SYNONYMS if word.lower() in names), ())
    similar = [name for name in command_names if name in synonyms] or difflib.get_close_matches(
        word, command_names, n=1, cutoff=LEAST_LIKENESS
    )
    return (
        f"Did you mean 'andy {family} {similar[0]}'?"
        if similar
        else f"There are: {', '.join(command_names)}."
    )


def help_page(*, width: int | None = None) -> str:
    """Return the page of `andy --help`, `width` columns wide, or as wide as the terminal.

    The page looks like those that Cyclopts renders for single commands; to load Cyclopts for it would take
    ten times as long.
    """
    columns = width or shutil.get_terminal_size().columns
    sections = [
        (topic, [(entry.name, entry.summary) for entry in COMMANDS if entry.topic == topic])
        for topic in TOPICS
    ]
    sections.append((OPTIONS, list(FLAG_ROWS)))
    name_width = max(len(name) for _, rows in sections for name, _ in rows)
    # Six columns are two borders, two blanks beside them, and two between the columns.
    summary_width = max(20, columns - name_width - 6)
    page = ["Usage: andy COMMAND", "", *textwrap.wrap(ABOUT, columns), ""]
    for title, rows in sections:
        lines = []
        for name, summary in rows:
            # Only the first line of a summary has the name before it.
            for number, part in enumerate(textwrap.wrap(summary, summary_width)):
                lines.append(f"{name if number == 0 else '':{name_width}}  {part:{summary_width}}")
        page += _box(title, lines)
    return "\n".join((*page, ""))


def _box(title: str, lines: list[str]) -> list[str]:
    """Return lines of equal length in a box with a title; a terminal without UTF-8 gets a box of ASCII."""
    inner_width = len(lines[0]) + 2  # with a blank on both sides
    # The 3 characters beside the title are one line and two blanks.
    box = [
        f"╭─ {title} {'─' * (inner_width - len(title) - 3)}╮",
        *(f"│ {line} │" for line in lines),
        f"╰{'─' * inner_width}╯",
    ]
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if encoding.lower().replace("-", "").startswith("utf"):
        return box
    plain = str.maketrans("╭╮╰╯│─", "++++|-")
    return [line.translate(plain) for line in box]
