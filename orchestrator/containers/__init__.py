"""Start, watch, re-attach and end the containers of groups. Start with `pool.py`."""
