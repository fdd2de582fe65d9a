-- For claims by type when jobs of other types are at the head of the queue.
CREATE INDEX jobs_of_type ON jobs (queue, type, priority, place)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0;

-- When a key can start jobs again, the first blocked jobs of each of its types become claimable. Jobs that were blocked by an
-- earlier version, which looked at the key only, become claimable now; claims block them again.
UPDATE jobs SET blocked = 0 WHERE blocked = 1;
DROP INDEX jobs_blocked;
CREATE INDEX jobs_blocked ON jobs (queue, concurrency_key, type, priority, place) WHERE blocked = 1;
