-- For claims by type: jobs of other types are never read. The condition on blocked is written as a cast, so that a query
-- with the same cast can use this index only, never jobs_claimable.
CREATE INDEX jobs_of_type ON {schema}.jobs (queue, type, priority, place, uid)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked::int = 0;

-- When a key can start jobs again, the first blocked jobs of each of its types become claimable. Jobs that were blocked by an
-- earlier version, which looked at the key only, become claimable now; claims block them again.
UPDATE {schema}.jobs SET blocked = false WHERE blocked;
DROP INDEX {schema}.jobs_blocked;
CREATE INDEX jobs_blocked ON {schema}.jobs (queue, concurrency_key, type, priority, place, uid) WHERE blocked;
