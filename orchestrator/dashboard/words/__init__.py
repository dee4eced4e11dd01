"""Read and write the words of a dashboard: times, texts, what the rules say. Start with `when.py`."""
