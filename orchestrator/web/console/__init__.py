"""The pages that the owner sees in a browser. Start with `page.py`."""
