"""WhatsApp. The library that speaks it runs in a process of its own.

On the bridge's side are `bridge`, `library`, `neonize_session`, `pairing_session`, `sending`, `convert`,
`message_text`, `contacts` and `spool`; the rest is the host's side.

`protocol` defines what the two send each other. `convert`, `message_text` and `markup` are pure.

Start with `channel.py`.
"""
