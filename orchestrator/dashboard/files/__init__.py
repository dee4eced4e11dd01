"""Export a dashboard to files and import it from them. Start with `export.py`."""
