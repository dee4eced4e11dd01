"""What reaches an agent: triggers, intake, the prompt."""
