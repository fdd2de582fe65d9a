-- For claims by type: jobs of other types are never read. The condition on parked is written as a cast, so that a query
-- with the same cast can use this index only, never jobs_claimable.
CREATE INDEX jobs_of_type ON {schema}.jobs (queue, type, priority, place, uid)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND parked::int = 0;

-- When a key can start jobs again, the first parked jobs of each of its types become claimable. Jobs that were parked by an
-- earlier version, which looked at the key only, become claimable now; claims park them again.
UPDATE {schema}.jobs SET parked = false WHERE parked;
DROP INDEX {schema}.jobs_parked;
CREATE INDEX jobs_parked ON {schema}.jobs (queue, concurrency_key, type, priority, place, uid) WHERE parked;
