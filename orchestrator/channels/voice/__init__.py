"""Write down what voice notes say, on this machine. Start with `transcriber.py`."""
