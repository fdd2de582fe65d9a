-- Exports, and data migrations out of and into this file; see also shared.sql.

-- name: event_after(after, last, skip)
SELECT n FROM job_events WHERE n > :after AND n <= :last ORDER BY n LIMIT 1 OFFSET :skip

-- name: workers_heard_since(moment)
SELECT id, seen_at FROM workers WHERE seen_at > :moment AND body ->> '$.state' IS NOT 'stopped' ORDER BY id

-- name: leases_in_force(now)
-- By owner, in the order of the index; a lease without an end counts as valid.
SELECT lease_owner, count(*), max(coalesce(lease_expires_at, 9223372036854775807)) FROM jobs INDEXED BY jobs_held
WHERE lease_token IS NOT NULL AND (lease_expires_at IS NULL OR lease_expires_at > :now) GROUP BY lease_owner

-- name: span_of_job_events()
SELECT (SELECT min(n) FROM job_events), (SELECT max(n) FROM job_events)

-- fragment: status_number
-- A number for each status that every dialect computes alike.
(length(status) * 128 + unicode(status))

-- name: digest_of_job_events(first, end)
SELECT count(*), sum((n % 997 + 1) * job_seq), sum((n % 997 + 1) * (occurred_at % 1000003))
FROM job_events WHERE n >= :first AND n < :end

-- name: rows_of_job_events(first, end)
SELECT n, {event_columns} FROM job_events WHERE n >= :first AND n < :end ORDER BY n

-- name: create_copy_state()
CREATE TABLE IF NOT EXISTS copy_state (note TEXT NOT NULL) STRICT

-- name: copy_state()
SELECT note FROM copy_state

-- name: clear_copy_state()
DELETE FROM copy_state

-- name: put_copy_state(note)
INSERT INTO copy_state (note) VALUES (:note)

-- name: clear_job_tags(first, end)
DELETE FROM job_tags WHERE (tag, uid) IN (
    SELECT tags.value, jobs.uid FROM jobs, json_each(jobs.tags) AS tags
    WHERE jobs.uid >= :first AND jobs.uid < :end AND jobs.tags <> ''
)

-- name: clear_job_events(first, end)
DELETE FROM job_events WHERE n >= :first AND n < :end

-- name: fill_jobs(uid, id, queue, type, payload, tags, options, priority, lifo, delay, expires_at, timeout,
--     max_attempts, max_crashes, idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id,
--     deps_total, created_at, deps_left, status, run_at, eligible_at, sort_key, blocked, executions, retry_count,
--     crashes, epoch, job_seq, updated_at, started_at, finalized_at, last_retry_at, assigned_at, assignee_id,
--     lease_owner, lease_token, lease_expires_at, announce_at, cancel_asked_at, result, error_message, progress,
--     checkpoint)
INSERT INTO jobs ({common_job_columns}) VALUES ({parameters})

-- name: fill_job_tags(first, end)
INSERT INTO job_tags ({tag_columns})
SELECT tags.value, uid, queue, priority, sort_key, status IN ({claim_sources}), status, retry_count
FROM jobs, json_each(jobs.tags) AS tags WHERE {in_block} AND jobs.tags <> ''

-- name: fill_job_dependencies(dependent_uid, depends_on, policy, state, position)
INSERT INTO job_dependencies ({edge_columns}) VALUES ({parameters})

-- name: fill_job_logs(uid, number, at, level, message)
INSERT INTO job_logs ({log_columns}) VALUES ({parameters})

-- name: fill_tombstones(uid, id, queue, type, status, idempotency_key, removed_at, request)
INSERT INTO tombstones ({tombstone_columns}) VALUES ({parameters})

-- name: fill_job_events(n, job_uid, job_id, job_seq, queue, type, event, from_status, to_status, epoch, execution,
--     assignee_id, actor, occurred_at, detail)
INSERT INTO job_events (n, {event_columns}) VALUES ({parameters})

-- name: fill_api_tokens(id, name, hash, scopes, queues, created_at, expires_at, revoked_at, last_used_at)
INSERT INTO api_tokens ({token_columns}) VALUES ({parameters})
