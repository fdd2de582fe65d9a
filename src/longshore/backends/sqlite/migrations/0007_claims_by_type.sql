-- A claim that names types reads this one where jobs of other types fill the head of the queue.
CREATE INDEX jobs_of_type ON jobs (queue, type, priority, place)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND parked = 0;
