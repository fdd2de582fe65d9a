-- For claims by type when jobs of other types are at the head of the queue.
CREATE INDEX jobs_of_type ON jobs (queue, type, priority, place)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND parked = 0;
