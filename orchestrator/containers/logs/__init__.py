"""The log files of runs. Start with `run_log.py`."""
