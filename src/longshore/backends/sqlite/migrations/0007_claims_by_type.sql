-- For claims by type when jobs of other types are at the head of the queue.
CREATE INDEX jobs_of_type ON jobs (queue, type, priority, place)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND parked = 0;

-- When a key can start jobs again, the first parked jobs of each of its types become claimable. Jobs that were parked by an
-- earlier version, which looked at the key only, become claimable now; claims park them again.
UPDATE jobs SET parked = 0 WHERE parked = 1;
DROP INDEX jobs_parked;
CREATE INDEX jobs_parked ON jobs (queue, concurrency_key, type, priority, place) WHERE parked = 1;
