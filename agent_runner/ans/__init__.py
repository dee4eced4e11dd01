"""The agent notification system: what goes on becomes events, and events become notices to the agent.

The way of an event: `event` → `bus` → `collector` → an `accumulator` for each `subscriber` that takes it →
`notification` → `formatter` → `injection`. `notices` is the door to all of it, one object a run; `deferred`
holds what waits, `shelf` reads subscribers and templates. `loops`, `budgets`, `context_use`, `checkpoints`
and `staleness` find what is worth an event. `rules`, `noticing` and `calls` join them to an agent's turn, and
`sdk_hooks` and `sdk_stream` alone know the SDK.

Start with `notices.py`.
"""
