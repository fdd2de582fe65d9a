-- The statements that have one text in both dialects. {schema} is `main` in SQLite. A fragment that only the dialects
-- define, such as {job_columns}, differs between them.

-- fragment: common_job_columns
uid, id, queue, type, payload, tags, options, priority, lifo, delay, expires_at, timeout, max_attempts, max_crashes,
idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id, deps_total, created_at, deps_left,
status, run_at, eligible_at, sort_key, blocked, executions, retry_count, crashes, epoch, job_seq, updated_at,
started_at, finalized_at, last_retry_at, assigned_at, assignee_id, lease_owner, lease_token, lease_expires_at,
announce_at, cancel_asked_at, result, error_message, progress, checkpoint

-- fragment: new_job_columns
-- The other columns have defaults.
uid, id, queue, type, payload, options, priority, lifo, delay, expires_at, timeout, max_attempts, max_crashes,
idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id, deps_total, created_at, deps_left,
status, run_at, eligible_at, sort_key, announce_at, job_seq, updated_at, tags

-- fragment: tag_columns
tag, uid, queue, priority, sort_key, claimable, status, retry_count

-- fragment: edge_columns
dependent_uid, depends_on, policy, state, position

-- fragment: log_columns
uid, number, at, level, message

-- fragment: tombstone_columns
uid, id, queue, type, status, idempotency_key, removed_at, request

-- fragment: event_columns
job_uid, job_id, job_seq, queue, type, event, from_status, to_status, epoch, execution, assignee_id, actor,
occurred_at, detail

-- fragment: queue_columns
name, paused, running_limit, per_key, rate_count, rate_per, key_rate_count, key_rate_per, window_start, window_count,
keep_finished, keep_dead, keep_events

-- fragment: key_state_columns
queue, key, running_count, window_start, window_count

-- fragment: key_columns
{key_state_columns}, window_ends_at

-- fragment: schedule_columns
next_run_at, last_run_at, last_job_id, run_count, updated_at, body

-- fragment: schedule_fields
id, next_run_at, last_run_at, last_job_id, run_count, updated_at, paused, body

-- fragment: token_columns
id, name, hash, scopes, queues, created_at, expires_at, revoked_at, last_used_at

-- Enqueue

-- name: insert_tag(tag, uid, queue, priority, sort_key, claimable, status, retry_count)
INSERT INTO {schema}.job_tags ({tag_columns}) VALUES ({parameters})

-- name: staged_run(run)
SELECT offered, inserted FROM {schema}.staged_runs WHERE run = :run AND offered IS NOT NULL

-- name: stage_job(run, part, job)
INSERT INTO {schema}.staged_jobs (run, part, job) VALUES (:run, :part, :job)

-- name: finish_staged_run(run, now, offered, inserted)
INSERT INTO {schema}.staged_runs (run, touched_at, offered, inserted) VALUES ({parameters})
ON CONFLICT (run) DO UPDATE SET
    touched_at = excluded.touched_at, offered = excluded.offered, inserted = excluded.inserted

-- name: abandoned_runs(unfinished_before, finished_before)
SELECT run FROM {schema}.staged_runs
WHERE touched_at < :unfinished_before AND offered IS NULL OR touched_at < :finished_before AND offered IS NOT NULL

-- name: clear_staged_jobs(run)
DELETE FROM {schema}.staged_jobs WHERE run = :run

-- name: drop_staged_run(run)
DELETE FROM {schema}.staged_runs WHERE run = :run

-- Claim and settle

-- name: insert_log(uid, now, level, message)
INSERT INTO {schema}.job_logs ({log_columns})
SELECT CAST(:uid AS bigint), coalesce(max(number), 0) + 1, CAST(:now AS bigint), CAST(:level AS text),
    CAST(:message AS text)
FROM {schema}.job_logs WHERE uid = :uid

-- name: save_checkpoint(checkpoint, now, uid)
UPDATE {schema}.jobs SET checkpoint = :checkpoint, updated_at = :now WHERE uid = :uid

-- name: keys_with_ended_windows(queue, now, last_window_end)
-- Keys whose window has ended, and keys whose window ends later than any can: the clock was set back.
SELECT {key_state_columns} FROM {schema}.concurrency_keys WHERE queue = :queue AND window_ends_at <= :now
UNION ALL
SELECT {key_state_columns} FROM {schema}.concurrency_keys WHERE queue = :queue AND window_ends_at > :last_window_end

-- Schedules and tokens

-- name: schedules()
SELECT {schedule_columns} FROM {schema}.schedules ORDER BY id

-- name: delete_schedule(id)
DELETE FROM {schema}.schedules WHERE id = :id

-- name: tokens()
SELECT {token_columns} FROM {schema}.api_tokens

-- name: token_by_id(id)
SELECT {token_columns} FROM {schema}.api_tokens WHERE id = :id

-- name: insert_token(id, name, hash, scopes, queues, created_at, expires_at)
INSERT INTO {schema}.api_tokens (id, name, hash, scopes, queues, created_at, expires_at) VALUES ({parameters})

-- name: revoke_token(id, now)
UPDATE {schema}.api_tokens SET revoked_at = coalesce(revoked_at, :now) WHERE id = :id

-- name: touch_token(id, now)
UPDATE {schema}.api_tokens SET last_used_at = :now WHERE id = :id

-- name: forget_tokens(moment)
DELETE FROM {schema}.api_tokens WHERE revoked_at <= :moment OR expires_at <= :moment

-- Queues and keys

-- name: queue(name)
SELECT {queue_columns} FROM {schema}.queues WHERE name = :name

-- name: queues()
SELECT {queue_columns} FROM {schema}.queues

-- name: rated_queues()
SELECT {queue_columns} FROM {schema}.queues WHERE rate_count IS NOT NULL OR key_rate_count IS NOT NULL

-- name: windows_of_keys(queue)
SELECT key, window_start, window_count FROM {schema}.concurrency_keys WHERE queue = :queue AND window_count > 0

-- name: next_window_end(queue, now)
SELECT window_ends_at FROM {schema}.concurrency_keys WHERE queue = :queue AND window_ends_at > :now
ORDER BY window_ends_at LIMIT 1

-- name: delete_keys(queue)
DELETE FROM {schema}.concurrency_keys WHERE queue = :queue

-- Reads

-- name: job_by_id(id)
SELECT {job_columns} FROM {schema}.jobs WHERE id = :id

-- name: uid_of(id)
SELECT uid FROM {schema}.jobs WHERE id = :id

-- name: logs(uid, after)
SELECT number, at, level, message FROM {schema}.job_logs WHERE uid = :uid AND number > :after ORDER BY number

-- name: edges_from(id)
SELECT {edge_columns} FROM {schema}.job_dependencies
WHERE dependent_uid = (SELECT uid FROM {schema}.jobs WHERE id = :id) ORDER BY position

-- fragment: is_lifo
-- The sort keys of LIFO jobs come before those of all times.
sort_key <= -1152921504606846976

-- name: tallies(queue)
SELECT status, sum(jobs), sum(retries) FROM {schema}.queue_counts
WHERE queue = :queue OR :queue IS NULL GROUP BY status

-- name: tallies_with_tag(tag, queue)
SELECT status, count(*), sum(retry_count) FROM {schema}.job_tags
WHERE tag = :tag AND (queue = :queue OR :queue IS NULL) GROUP BY status

-- name: put_worker(id, now, body)
INSERT INTO {schema}.workers (id, seen_at, body) VALUES ({parameters})
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, body = excluded.body

-- name: workers()
SELECT body FROM {schema}.workers ORDER BY id

-- Bulk reads are built in Python around these sources: columns before, conditions after.

-- fragment: bulk_jobs
FROM {schema}.jobs

-- fragment: bulk_job_events
FROM {schema}.job_events

-- fragment: bulk_job_logs
FROM {schema}.job_logs JOIN {schema}.jobs USING (uid)

-- Data migration: a table is copied in blocks of uids, from :first up to but without :end, and compared by digests.

-- fragment: in_block
uid >= :first AND uid < :end

-- fragment: in_block_of_dependents
dependent_uid >= :first AND dependent_uid < :end

-- fragment: weight
-- A row's values are multiplied by this, so that two rows which swap values change the digest.
(uid % 997 + 1)

-- name: span_of_jobs()
-- Two subqueries, because SQLite answers each by one index lookup, but not both in one query.
SELECT (SELECT min(uid) FROM {schema}.jobs), (SELECT max(uid) FROM {schema}.jobs)

-- name: span_of_job_dependencies()
SELECT
    (SELECT min(dependent_uid) FROM {schema}.job_dependencies),
    (SELECT max(dependent_uid) FROM {schema}.job_dependencies)

-- name: span_of_job_logs()
SELECT (SELECT min(uid) FROM {schema}.job_logs), (SELECT max(uid) FROM {schema}.job_logs)

-- name: span_of_tombstones()
SELECT (SELECT min(uid) FROM {schema}.tombstones), (SELECT max(uid) FROM {schema}.tombstones)

-- name: digest_of_jobs(first, end)
-- Every change of a job changes one of these: its version or, where no event is written, one of the other sums.
SELECT
    count(*), sum({weight} * job_seq), sum({weight} * {status_number}), sum({weight} * retry_count),
    sum({weight} * (updated_at % 1000003)), sum({weight} * (coalesce(lease_expires_at, 0) % 1000003)),
    sum({weight} * CAST(blocked AS integer)), sum({weight} * deps_left), sum({weight} * (sort_key % 1000003)),
    sum(length(payload)), sum(length(result)), sum(length(checkpoint))
FROM {schema}.jobs WHERE {in_block}

-- name: digest_of_job_tags()
SELECT
    sum({weight} * length(tag)), sum({weight} * {status_number}), sum({weight} * retry_count),
    sum({weight} * CAST(claimable AS integer)), sum({weight} * (sort_key % 1000003)),
    sum({weight} * (priority % 1000003))
FROM {schema}.job_tags

-- name: digest_of_job_dependencies(first, end)
SELECT count(*), sum((dependent_uid % 997 + 1) * (position + 1)), sum((dependent_uid % 997 + 1) * length(state))
FROM {schema}.job_dependencies WHERE {in_block_of_dependents}

-- name: digest_of_job_logs(first, end)
SELECT count(*), sum({weight} * number), sum({weight} * (at % 1000003)) FROM {schema}.job_logs WHERE {in_block}

-- name: digest_of_tombstones(first, end)
SELECT
    count(*), sum({weight} * (removed_at % 1000003)), sum({weight} * {status_number}), sum({weight} * length(request))
FROM {schema}.tombstones WHERE {in_block}

-- name: recount()
SELECT queue, status, count(*), CAST(sum(retry_count) AS bigint) FROM {schema}.jobs GROUP BY queue, status

-- name: fill_counts()
INSERT INTO {schema}.queue_counts (queue, status, jobs, retries)
SELECT queue, status, count(*), sum(retry_count) FROM {schema}.jobs GROUP BY queue, status

-- name: row_counts()
SELECT
    (SELECT count(*) FROM {schema}.jobs), (SELECT count(*) FROM {schema}.job_dependencies),
    (SELECT count(*) FROM {schema}.job_logs), (SELECT count(*) FROM {schema}.tombstones),
    (SELECT count(*) FROM {schema}.job_events), (SELECT count(*) FROM {schema}.job_tags),
    (SELECT count(*) FROM {schema}.queues), (SELECT count(*) FROM {schema}.concurrency_keys),
    (SELECT count(*) FROM {schema}.schedules), (SELECT count(*) FROM {schema}.api_tokens)

-- name: rows_of_jobs(first, end)
SELECT {common_job_columns} FROM {schema}.jobs WHERE {in_block} ORDER BY uid

-- name: rows_of_job_dependencies(first, end)
-- The last column is PostgreSQL's `unsure`. SQLite has none, and a copy out of PostgreSQL is refused while an edge is.
SELECT {edge_columns}, 0 FROM {schema}.job_dependencies WHERE {in_block_of_dependents}

-- name: rows_of_job_logs(first, end)
SELECT {log_columns} FROM {schema}.job_logs WHERE {in_block}

-- name: rows_of_tombstones(first, end)
SELECT {tombstone_columns} FROM {schema}.tombstones WHERE {in_block}

-- name: rows_of_concurrency_keys()
SELECT {key_columns} FROM {schema}.concurrency_keys

-- name: rows_of_schedules()
SELECT {schedule_fields} FROM {schema}.schedules

-- name: clear_jobs(first, end)
DELETE FROM {schema}.jobs WHERE {in_block}

-- name: clear_job_dependencies(first, end)
DELETE FROM {schema}.job_dependencies WHERE {in_block_of_dependents}

-- name: clear_job_logs(first, end)
DELETE FROM {schema}.job_logs WHERE {in_block}

-- name: clear_tombstones(first, end)
DELETE FROM {schema}.tombstones WHERE {in_block}
