-- When the owner was notified of an outage; null where that was left out, as for a service that comes and goes.
ALTER TABLE service_outages ADD COLUMN notified_ms INTEGER;
UPDATE service_outages SET notified_ms = since_ms;
