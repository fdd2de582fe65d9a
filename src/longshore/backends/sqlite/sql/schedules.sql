-- name: schedules_due(after, now, limit)
SELECT {schedule_columns} FROM schedules WHERE next_run_at > :after AND next_run_at <= :now AND paused = 0
ORDER BY next_run_at, id LIMIT :limit

-- name: schedules_ahead(moment, limit)
-- Reads every schedule, so it runs rarely: after the clock was set back.
SELECT {schedule_columns} FROM schedules WHERE updated_at > :moment AND paused = 0 ORDER BY id LIMIT :limit

-- name: move_schedules(next_run_at, last_run_at, last_job_id, run_count, updated_at, id)
-- A firing leaves the body alone: thousands of schedules may fire at one moment.
UPDATE schedules SET next_run_at = :next_run_at, last_run_at = :last_run_at, last_job_id = :last_job_id,
    run_count = :run_count, updated_at = :updated_at
WHERE id = :id

-- name: next_firing()
SELECT min(next_run_at) FROM schedules WHERE next_run_at IS NOT NULL AND paused = 0

-- name: put_schedules(id, next_run_at, last_run_at, last_job_id, run_count, updated_at, paused, body)
INSERT OR REPLACE INTO schedules ({schedule_fields}) VALUES ({parameters})

-- name: schedules_by_ids(ids)
SELECT {schedule_columns} FROM schedules WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id
