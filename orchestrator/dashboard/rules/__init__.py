"""What a dashboard calls for by itself. Pure: no clock, no store."""
