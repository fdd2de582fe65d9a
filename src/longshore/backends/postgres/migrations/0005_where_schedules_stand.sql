-- What changes whenever a schedule fires, beside its body: thousands may fire at one moment, and nothing else is written.
ALTER TABLE {schema}.schedules ADD COLUMN last_run_at bigint, ADD COLUMN last_job_id text COLLATE "C",
    ADD COLUMN run_count bigint NOT NULL DEFAULT 0, ADD COLUMN updated_at bigint;

UPDATE {schema}.schedules SET last_run_at = (body::json ->> 'last_run_at')::bigint, last_job_id = body::json ->> 'last_job_id',
    run_count = (body::json ->> 'run_count')::bigint, updated_at = (body::json ->> 'updated_at')::bigint;
