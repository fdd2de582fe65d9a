-- A claim that names types reads this one: jobs of other types cost it nothing. The condition on parked is written so that
-- a query which repeats it can use this index only, whatever the planner thinks of jobs_claimable.
CREATE INDEX jobs_of_type ON {schema}.jobs (queue, type, priority, place, uid)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND parked::int = 0;
