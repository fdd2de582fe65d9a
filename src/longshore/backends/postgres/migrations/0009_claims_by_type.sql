-- For claims by type: jobs of other types are never read. The condition on parked is written as a cast, so that a query
-- with the same cast can use this index only, never jobs_claimable.
CREATE INDEX jobs_of_type ON {schema}.jobs (queue, type, priority, place, uid)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND parked::int = 0;
