"""Read calendars of the owner, so that a group knows their events. Start with `feature.py`."""
