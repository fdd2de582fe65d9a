-- Statements of schedules.

-- fragment: given_schedules
SELECT * FROM unnest(
    :ids::text[], :next_run_at::bigint[], :last_run_at::bigint[], :last_job_ids::text[], :run_counts::bigint[],
    :updated_at::bigint[], :paused::boolean[], :bodies::text[]
) AS given ({schedule_fields})

-- name: insert_schedules(ids, next_run_at, last_run_at, last_job_ids, run_counts, updated_at, paused, bodies)
-- The number of rows shows whether another transaction stored the same id first.
INSERT INTO {schema}.schedules ({schedule_fields}) {given_schedules} ON CONFLICT (id) DO NOTHING

-- name: put_schedules(ids, next_run_at, last_run_at, last_job_ids, run_counts, updated_at, paused, bodies)
UPDATE {schema}.schedules AS kept
SET paused = given.paused, next_run_at = given.next_run_at, last_run_at = given.last_run_at,
    last_job_id = given.last_job_id, run_count = given.run_count, updated_at = given.updated_at, body = given.body,
    changed = pg_current_xact_id()
FROM ({given_schedules}) AS given WHERE kept.id = given.id

-- name: schedules_due(after, now, limit)
SELECT {schedule_columns} FROM {schema}.schedules
WHERE next_run_at > :after AND next_run_at <= :now AND NOT paused
ORDER BY next_run_at, id LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: schedules_ahead(now, limit)
-- This reads all schedules, so the scheduler runs it rarely.
SELECT {schedule_columns} FROM {schema}.schedules
WHERE updated_at > :now AND NOT paused ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: move_schedules(ids, next_run_at, last_run_at, last_job_ids, run_counts, updated_at)
-- The ids as an array keep the planner at the primary key.
UPDATE {schema}.schedules AS kept
SET next_run_at = given.next_run_at, last_run_at = given.last_run_at, last_job_id = given.last_job_id,
    run_count = given.run_count, updated_at = given.updated_at, changed = pg_current_xact_id()
FROM unnest(
    :ids::text[], :next_run_at::bigint[], :last_run_at::bigint[], :last_job_ids::text[], :run_counts::bigint[],
    :updated_at::bigint[]
) AS given (id, next_run_at, last_run_at, last_job_id, run_count, updated_at)
WHERE kept.id = given.id AND kept.id = ANY(:ids::text[])

-- name: schedules_by_ids(ids)
SELECT {schedule_columns} FROM {schema}.schedules WHERE id = ANY(:ids::text[]) ORDER BY id

-- name: held_schedules(ids)
SELECT {schedule_columns} FROM {schema}.schedules WHERE id = ANY(:ids::text[]) ORDER BY id FOR UPDATE

-- name: next_firing()
SELECT min(next_run_at) FROM {schema}.schedules WHERE next_run_at IS NOT NULL AND NOT paused
