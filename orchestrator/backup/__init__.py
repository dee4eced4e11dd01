"""Write a home into one file and put it back. Start with `make.py`."""
