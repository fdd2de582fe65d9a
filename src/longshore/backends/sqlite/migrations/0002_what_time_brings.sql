-- When a delayed job's time is to be announced; and since when a job is being cancelled. Both indexes hold only jobs that
-- are just that: a job without a delay that nobody cancels is in neither.
ALTER TABLE jobs ADD COLUMN announce_at INTEGER;
ALTER TABLE jobs ADD COLUMN cancel_asked_at INTEGER;

-- Jobs whose time came before this migration were never announced, and are not now: nobody waits for that.
UPDATE jobs SET announce_at = run_at
WHERE run_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER)
AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY');
UPDATE jobs SET cancel_asked_at = updated_at WHERE status = 'CANCELLING';

CREATE INDEX jobs_to_announce ON jobs (announce_at)
    WHERE announce_at IS NOT NULL AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY');
CREATE INDEX jobs_cancelling ON jobs (cancel_asked_at) WHERE status = 'CANCELLING';
