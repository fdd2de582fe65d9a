-- A claim under limits reads the counts of its queue. Without an index PostgreSQL before 18 gives such a plan so high a
-- cost that it compiles it, which takes longer than the claim itself.
CREATE INDEX queue_counts_by_queue ON {schema}.queue_counts (queue, status);
