"""The agent notification system turns what happens in a run into notices to its agent.

An event passes through these modules: `event` → `event_queue` → `registry` → an `accumulator` for each
`subscriber` that takes it → `notification` → `formatter` → `renderer`. `notices` has the object with which a
run uses all of them. `deferred` stores notices that wait for a tool or a condition, `subscriber_store` reads
subscribers and templates. `detectors` and `staleness` find facts that become events. `rules`, `lazy_notices`
and `tool_events` connect them with an agent's turn. Only `sdk_hooks` and `sdk_stream` use the SDK;
`observed_host` reports the calls of an agent without the SDK.

Start with `notices.py`.
"""
