"""WhatsApp. The library that speaks it runs in a process of its own: `bridge`; the rest is the host's side.

`protocol` is what the two say to each other. `convert`, `markup` and `pacing` are pure.

Start with `channel.py`.
"""
