-- Statements of an enqueue, in the order in which a new job meets them.

-- name: jobs_of_keys(queues, keys)
SELECT jobs.queue, jobs.idempotency_key, jobs.id
FROM unnest(:queues::text[], :keys::text[]) AS wanted (queue, key)
JOIN {schema}.jobs ON jobs.queue = wanted.queue AND jobs.idempotency_key = wanted.key

-- name: jobs_behind_keys(queues, keys)
SELECT {job_columns} FROM unnest(:queues::text[], :keys::text[]) AS wanted (wanted_queue, wanted_key)
JOIN {schema}.jobs ON queue = wanted_queue AND idempotency_key = wanted_key

-- name: tombstones_behind_keys(queues, keys, removed_after)
-- In the order of uids, so that the caller keeps the newest of several jobs with one key.
SELECT uid, id, queue, type, status, idempotency_key, request
FROM unnest(:queues::text[], :keys::text[]) AS wanted (wanted_queue, wanted_key)
JOIN {schema}.tombstones ON queue = wanted_queue AND idempotency_key = wanted_key
WHERE removed_at > :removed_after ORDER BY uid

-- name: statuses(ids)
SELECT id, status FROM {schema}.jobs WHERE id = ANY(:ids::text[])

-- name: held_statuses(ids)
-- The lock keeps these jobs from ending before the edges to them are stored: a statement that may end a job locks it
-- FOR UPDATE, and waits for this one. A renewal or a claim does not wait.
SELECT id, status FROM {schema}.jobs WHERE id = ANY(:ids::text[]) ORDER BY uid FOR KEY SHARE

-- name: removed_statuses(ids, removed_after)
-- In the order of uids, so that the caller keeps the newest of several jobs with one id.
SELECT id, status FROM {schema}.tombstones WHERE id = ANY(:ids::text[]) AND removed_at > :removed_after ORDER BY uid

-- name: new_uids(count)
SELECT nextval($name${schema}.job_uids$name$) FROM generate_series(1, :count::bigint)

-- name: insert_job(uid, id, queue, type, payload, options, priority, lifo, delay, expires_at, timeout, max_attempts,
--     max_crashes, idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id, deps_total,
--     created_at, deps_left, status, run_at, eligible_at, sort_key, announce_at, job_seq, updated_at, tags)
-- The number of rows shows whether an id or a key is in use.
INSERT INTO {schema}.jobs ({new_job_columns}) VALUES ({parameters}) ON CONFLICT DO NOTHING

-- name: copy_jobs()
COPY {schema}.jobs ({new_job_columns}) FROM STDIN

-- name: ids_taken(ids, own_uids)
SELECT id FROM {schema}.jobs WHERE id = ANY(:ids::text[]) AND uid <> ALL(:own_uids::bigint[])

-- name: insert_added_events(uids, now, actor)
-- The first event of each new job, read from the jobs in one statement.
INSERT INTO {schema}.job_events ({event_columns})
SELECT uid, id, 1, queue, type, 'job.added', NULL, status, 0, 0, NULL, :actor::text, :now::bigint,
    CASE WHEN concurrency_key IS NOT NULL OR schedule_id IS NOT NULL OR parent_id IS NOT NULL THEN json_strip_nulls(
        json_build_object('key', concurrency_key, 'schedule_id', schedule_id, 'parent_id', parent_id)
    )::text END
FROM {schema}.jobs WHERE uid = ANY(:uids::bigint[]) ORDER BY uid

-- name: copy_events()
COPY {schema}.job_events ({event_columns}) FROM STDIN

-- fragment: next_event_xid
-- The xid of a job's next event: never below that of its last one, which a transaction that began later may have
-- written.
greatest(last_event_xid, pg_current_xact_id())

-- name: insert_event(rows)
INSERT INTO {schema}.job_events (xid, {event_columns})
SELECT greatest(pg_current_xact_id(), (SELECT last_event_xid FROM {schema}.jobs WHERE uid = job_uid)), {event_columns}
FROM json_populate_recordset(NULL::{schema}.job_events, :rows::json) WITH ORDINALITY ORDER BY ordinality

-- name: copy_tags()
COPY {schema}.job_tags ({tag_columns}) FROM STDIN

-- name: put_edge(rows)
-- An edge that was stored before is visible to all: it is no longer unsure.
INSERT INTO {schema}.job_dependencies ({edge_columns}, unsure)
SELECT {edge_columns}, unsure FROM json_populate_recordset(NULL::{schema}.job_dependencies, :rows::json)
ON CONFLICT (dependent_uid, depends_on) DO UPDATE SET state = excluded.state, unsure = false

-- name: add_to_count(queues, statuses, jobs, retries)
INSERT INTO {schema}.queue_counts (queue, status, jobs, retries)
SELECT * FROM unnest(:queues::text[], :statuses::text[], :jobs::bigint[], :retries::bigint[])

-- name: remember_queues(names)
INSERT INTO {schema}.queue_names
SELECT fresh.name FROM unnest(:names::text[]) AS fresh (name)
WHERE NOT EXISTS (SELECT 1 FROM {schema}.queue_names AS known WHERE known.name = fresh.name)

-- name: copy_staged_jobs()
COPY {schema}.staged_jobs (run, part, job) FROM STDIN

-- name: touch_staged_run(run, now)
INSERT INTO {schema}.staged_runs AS known (run, touched_at) VALUES (:run, :now)
ON CONFLICT (run) DO UPDATE SET touched_at = greatest(known.touched_at, excluded.touched_at)

-- name: insert_plain_jobs(run, parts, now)
-- A staged job that is a JSON array was checked when it was staged and needs no look-up. Its fields are in the order of
-- `_PLAIN`. The job and its first event are written in one statement.
WITH plain AS MATERIALIZED (
    DELETE FROM {schema}.staged_jobs WHERE run = :run AND part = ANY(:parts::text[]) AND starts_with(job, '[')
    RETURNING number, job
),
numbered AS MATERIALIZED (
    SELECT nextval($name${schema}.job_uids$name$) AS uid, body
    FROM (SELECT job::jsonb AS body FROM plain ORDER BY number) AS ordered
),
fresh AS (
    INSERT INTO {schema}.jobs (
        uid, id, type, queue, payload, priority, max_attempts, max_crashes, timeout, expires_at, options, lifo, tags,
        on_dependency_failure, deps_total, deps_left, status, created_at, updated_at, eligible_at, sort_key, job_seq
    )
    SELECT uid, body->>0, body->>1, body->>2, convert_to(body->>3, 'UTF8'), (body->>4)::bigint, (body->>5)::bigint,
        (body->>6)::bigint, (body->>7)::bigint, (body->>8)::bigint, '{}', false, '', 'wait', 0, 0,
        {accept_target}, :now::bigint, :now::bigint, :now::bigint, :now::bigint, 1
    FROM numbered ORDER BY uid
),
logged AS (
    INSERT INTO {schema}.job_events ({event_columns})
    SELECT uid, body->>0, 1, body->>2, body->>1, 'job.added', NULL, {accept_target}, 0, 0, NULL, '',
        :now::bigint, NULL
    FROM numbered ORDER BY uid
)
SELECT body->>2, count(*)::bigint FROM numbered GROUP BY 1

-- name: staged_jobs(run, parts)
SELECT job FROM {schema}.staged_jobs WHERE run = :run AND part = ANY(:parts::text[]) ORDER BY number
