-- A claim under limits reads the counts of its queue. Without an index the estimated cost is so high
-- that PostgreSQL before 18 compiles the plan, which takes longer than the claim.
CREATE INDEX queue_counts_by_queue ON {schema}.queue_counts (queue, status);
