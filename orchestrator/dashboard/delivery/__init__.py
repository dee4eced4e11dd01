"""Notifications told at their time, and what people reply to them."""
