"""Start, watch, re-attach and end the containers of groups. Start reading with `pool.py`."""
