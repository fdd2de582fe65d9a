-- The machine's clocks as they were last compared, and the last step of the wall clock. A job whose run_at was given as a
-- duration is moved with such a step; one whose run_at is a time of the wall clock is not.
ALTER TABLE meta ADD COLUMN boot_id TEXT;
ALTER TABLE meta ADD COLUMN clock_wall INTEGER;
ALTER TABLE meta ADD COLUMN clock_since_boot INTEGER;
ALTER TABLE meta ADD COLUMN stepped_at INTEGER;
ALTER TABLE meta ADD COLUMN stepped_by INTEGER;
ALTER TABLE jobs ADD COLUMN relative INTEGER NOT NULL DEFAULT 0;

UPDATE jobs SET relative = 1
WHERE run_at IS NOT NULL AND (status IN ('FAILED_RETRY', 'UNKNOWN_RETRY') OR run_at = created_at + delay);
