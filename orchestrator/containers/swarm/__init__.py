"""Run agents on the nodes of a Docker Swarm. Start with `runtime.py`; `session.py` is one run of them."""
