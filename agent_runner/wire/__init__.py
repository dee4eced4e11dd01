"""The contract between the host and a container, version 1.

Only the standard library and pydantic are imported here, because both sides load it: the host at
start, the container before anything slow. Three channels carry it:

- stdin: one line with one `RunOrder` (`order`);
- stdout: numbered `Frame`s between marker lines (`frames`);
- directories: one JSON document a file (`mailbox`), written under a partial name and renamed (`files`).

Start with `frames.py`.
"""

START = "---NANOCLAW_OUTPUT_START---"
END = "---NANOCLAW_OUTPUT_END---"
"""The marker lines of a frame. They are here because a carrier needs nothing else that `frames` imports."""
