"""Transcribe voice notes on this machine. Start with `transcriber.py`."""
