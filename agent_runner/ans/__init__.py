"""The agent notification system: what goes on becomes events, and events become notices to the agent."""
