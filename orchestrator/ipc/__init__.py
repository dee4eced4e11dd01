"""Read the requests that containers write as files, and answer them. Start with `command_dispatcher.py`."""
