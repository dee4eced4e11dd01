"""The proxies that a container can reach: to the model service, with the key added, and to the internet.

Start with `feature.py`.
"""
