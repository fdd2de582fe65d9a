-- What changes whenever a schedule fires, beside its body: thousands may fire at one moment, and nothing else is written.
ALTER TABLE schedules ADD COLUMN last_run_at INTEGER;
ALTER TABLE schedules ADD COLUMN last_job_id TEXT;
ALTER TABLE schedules ADD COLUMN run_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE schedules ADD COLUMN updated_at INTEGER;

UPDATE schedules SET last_run_at = json_extract(body, '$.last_run_at'), last_job_id = json_extract(body, '$.last_job_id'),
    run_count = json_extract(body, '$.run_count'), updated_at = json_extract(body, '$.updated_at');
