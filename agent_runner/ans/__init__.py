"""The agent notification system turns what happens in a run into notices to its agent.

An event takes this way: `event` → `event_queue` → `registry` → an `accumulator` for each `subscriber` that
takes it → `notification` → `formatter` → `renderer`. `notices` stands before all of it, one object a run;
`deferred` holds notices for a later turn, `subscriber_store` reads subscribers and templates. `detectors` and
`staleness` find what is worth an event. `rules`, `lazy_notices` and `tool_events` join them to an agent's
turn. `sdk_hooks` and `sdk_stream` alone know the SDK; `observed_host` reports the calls of an agent without
it.

Start with `notices.py`.
"""
