"""The loop of a group's agent: its state, its cycles, its wakes and their events. Start with `loops.py`."""
