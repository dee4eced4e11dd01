"""What changes a dashboard: tasks, questions, notifications, knowledge."""
