-- The machine's clocks as they were last compared, and the last step of the wall clock. A run_at that was given as a
-- duration is shifted by such a step; a run_at that was given as a time is not.
ALTER TABLE meta ADD COLUMN boot_id TEXT;
ALTER TABLE meta ADD COLUMN clock_wall INTEGER;
ALTER TABLE meta ADD COLUMN clock_since_boot INTEGER;
ALTER TABLE meta ADD COLUMN stepped_at INTEGER;
ALTER TABLE meta ADD COLUMN stepped_by INTEGER;
ALTER TABLE jobs ADD COLUMN relative INTEGER NOT NULL DEFAULT 0;

UPDATE jobs SET relative = 1
WHERE run_at IS NOT NULL AND (status IN ('FAILED_RETRY', 'UNKNOWN_RETRY') OR run_at = created_at + delay);
