"""All that a container can reach: the model service with the key added, and the way out.

Start with `feature.py`.
"""
