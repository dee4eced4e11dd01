"""WhatsApp. The library that speaks it runs in a process of its own.

That process is called the bridge. It runs `bridge`, `library`, `neonize_session`, `pairing_session`,
`sending`, `convert`, `message_text`, `contacts` and `spool`; the host runs the other modules.

`protocol` defines the messages between the two. `convert`, `message_text` and `markup` are pure.

Start with `channel.py`.
"""
