-- Claim order is priority, sort_key, uid. The sort key of a FIFO job is its eligible_at, so jobs of the future are the
-- unread tail of the index jobs_claimable. LIFO jobs have smaller sort keys; their eligible_at is checked row by row.

-- fragment: due
-- The jobs of one queue and priority that a worker can claim now.
jobs.queue = :queue AND jobs.priority = :priority AND jobs.sort_key <= :now AND jobs.eligible_at <= :now AND {waiting}

-- fragment: claimed_columns
-- A job after the claim, in the order of the fields of Job; Python fills in the NULLs, which all jobs of a claim share.
-- `previous_status` and `sort_key` replace the fields `status` and `updated_at` of Job: tags and counts need them.
id, type, payload, jobs.queue, tags, status AS previous_status, priority, lifo, run_at, delay, expires_at, timeout,
max_attempts, max_crashes, idempotency_key, concurrency_key, parent_id, deps_total, on_dependency_failure, options, uid,
executions + 1 AS executions, retry_count, crashes, epoch + 1 AS epoch, created_at, sort_key, started_at, finalized_at,
last_retry_at, NULL AS assigned_at, NULL AS assignee_id, NULL AS lease, result, error_message, progress, checkpoint,
schedule_id

-- fragment: candidate_columns
-- What a claim has to know of a job to choose or skip it.
priority, sort_key, uid, jobs.queue, concurrency_key, expires_at, jobs.blocked

-- fragment: key_state
coalesce(running_count, 0) AS running_count, coalesce(window_start, 0) AS window_start,
coalesce(window_count, 0) AS window_count

-- fragment: key_is_full
running_count >= :per_key OR (window_count >= :key_rate AND window_start >= :window_start)

-- fragment: has_wanted_type
:types IS NULL OR type IN (SELECT value FROM json_each(:types))

-- name: next_priority(queue, after_priority)
-- One step down jobs_claimable to the next priority that has waiting jobs, due or not.
SELECT priority FROM jobs INDEXED BY jobs_claimable
WHERE queue = :queue AND priority > :after_priority AND {waiting} ORDER BY priority LIMIT 1

-- name: first_claimable(queue, priority, now, limit)
SELECT {claimed_columns} FROM jobs INDEXED BY jobs_claimable WHERE {due} ORDER BY sort_key, uid LIMIT :limit

-- name: first_with_keys(queue, priority, now, limit)
-- The same with the state of each job's concurrency key.
SELECT {claimed_columns}, {key_state}
FROM jobs INDEXED BY jobs_claimable
LEFT JOIN concurrency_keys ON concurrency_keys.queue = jobs.queue AND concurrency_keys.key = concurrency_key
WHERE {due} ORDER BY sort_key, uid LIMIT :limit

-- name: first_priorities_of_types(queue, types)
-- The first priority of each type, due or not: one index lookup for each.
SELECT wanted.value, (
    SELECT priority FROM jobs INDEXED BY jobs_of_type
    WHERE queue = :queue AND type = wanted.value AND {waiting} ORDER BY priority LIMIT 1
)
FROM json_each(:types) AS wanted

-- name: next_priority_of_type(queue, type, after_priority)
SELECT priority FROM jobs INDEXED BY jobs_of_type
WHERE queue = :queue AND type = :type AND priority > :after_priority AND {waiting} ORDER BY priority LIMIT 1

-- name: first_of_type(queue, priority, now, type, limit)
SELECT {claimed_columns} FROM jobs INDEXED BY jobs_of_type
WHERE {due} AND type = :type ORDER BY sort_key, uid LIMIT :limit

-- name: claimable(queue, priority, now, after_sort_key, after_uid, limit)
SELECT {candidate_columns}, {key_state}
FROM jobs INDEXED BY jobs_claimable
LEFT JOIN concurrency_keys ON concurrency_keys.queue = jobs.queue AND concurrency_keys.key = concurrency_key
WHERE {due} AND (sort_key, uid) > (:after_sort_key, :after_uid) ORDER BY sort_key, uid LIMIT :limit

-- name: claimable_with_free_slots(queue, priority, now, per_key, key_rate, window_start, after_sort_key, after_uid,
--     limit)
-- Skips jobs whose key is full, without returning them one by one.
SELECT {candidate_columns}, {key_state}
FROM jobs INDEXED BY jobs_claimable
LEFT JOIN concurrency_keys ON concurrency_keys.queue = jobs.queue AND concurrency_keys.key = concurrency_key
WHERE {due} AND (concurrency_key IS NULL OR concurrency_key NOT IN (
    SELECT key FROM concurrency_keys WHERE queue = :queue AND ({key_is_full})
))
AND (sort_key, uid) > (:after_sort_key, :after_uid) ORDER BY sort_key, uid LIMIT :limit

-- name: claimable_of_type(queue, priority, now, type, limit)
SELECT {candidate_columns}, {key_state}
FROM jobs INDEXED BY jobs_of_type
LEFT JOIN concurrency_keys ON concurrency_keys.queue = jobs.queue AND concurrency_keys.key = concurrency_key
WHERE {due} AND type = :type ORDER BY sort_key, uid LIMIT :limit

-- name: next_tagged_priority(tag, queue, after_priority)
SELECT priority FROM job_tags INDEXED BY job_tags_claimable
WHERE tag = :tag AND queue = :queue AND priority > :after_priority AND claimable = 1 ORDER BY priority LIMIT 1

-- name: tagged_claimable(tag, queue, priority, now, other_tags)
-- :tag is the rarest tag. The job itself is read only if it has all tags.
SELECT uid FROM job_tags AS tagged INDEXED BY job_tags_claimable
WHERE tag = :tag AND queue = :queue AND priority = :priority AND sort_key <= :now AND claimable = 1
AND {has_other_tags}
ORDER BY sort_key, uid

-- name: claimable_by_uid(uid, now, types)
SELECT {candidate_columns} FROM jobs WHERE uid = :uid AND eligible_at <= :now AND ({has_wanted_type})

-- name: uid_with_free_slots(queue, uid, now, per_key, key_rate, window_start, types)
SELECT {candidate_columns} FROM jobs WHERE uid = :uid AND eligible_at <= :now AND ({has_wanted_type})
AND (concurrency_key IS NULL OR concurrency_key NOT IN (
    SELECT key FROM concurrency_keys WHERE queue = :queue AND key = jobs.concurrency_key AND ({key_is_full})
))

-- name: waiting_with_tag(tag, limit)
SELECT count(*) FROM (SELECT 1 FROM job_tags WHERE tag = :tag AND claimable = 1 LIMIT :limit)

-- name: jobs_to_claim(uids)
SELECT {claimed_columns} FROM jobs WHERE uid IN (SELECT value FROM json_each(:uids))

-- name: insert_active_events(first_event, owner, now, uids)
-- Before the claim is written: it changes the status that the event records.
INSERT INTO job_events (n, {event_columns})
SELECT :first_event + claimed.key, uid, jobs.id, job_seq + 1, queue, jobs.type, 'job.active', status, {claim_target},
    epoch + 1, executions + 1, :owner, '', :now, NULL
FROM json_each(:uids) AS claimed JOIN jobs ON uid = claimed.value

-- fragment: claim
status = {claim_target}, blocked = 0, executions = executions + 1, epoch = epoch + 1, job_seq = job_seq + 1,
updated_at = :now, started_at = coalesce(started_at, :now), assigned_at = :now, assignee_id = :owner,
lease_owner = :owner, lease_token = :token, lease_expires_at = :expires_at

-- name: claim_jobs(now, owner, token, expires_at, uids)
-- The condition on the status is the fence: the caller compares the number of changed rows.
UPDATE jobs SET {claim} WHERE uid IN (SELECT value FROM json_each(:uids)) AND status IN ({claim_sources})

-- name: claim_span(now, owner, token, expires_at, first, last)
-- The same for jobs that were stored one after the other, which is the common case: a range costs less than lookups.
UPDATE jobs SET {claim} WHERE uid BETWEEN :first AND :last AND status IN ({claim_sources})

-- name: use_keys(queue, jobs, keys, window_start, window_end)
-- Adds :jobs to the running count of each key and, if the queue limits the rate of a key, to its window.
INSERT INTO concurrency_keys AS kept ({key_columns})
SELECT :queue, value, :jobs, coalesce(:window_start, 0), iif(:window_start IS NULL, 0, :jobs), :window_end
FROM json_each(:keys) WHERE true
ON CONFLICT (queue, key) DO UPDATE SET
    running_count = kept.running_count + :jobs,
    window_count = CASE WHEN :window_start IS NULL THEN kept.window_count
        WHEN kept.window_start BETWEEN :window_start AND :window_end THEN kept.window_count + :jobs ELSE :jobs END,
    window_start = iif(:window_start IS NULL OR kept.window_start BETWEEN :window_start AND :window_end,
        kept.window_start, :window_start),
    window_ends_at = CASE WHEN :window_start IS NULL THEN kept.window_ends_at
        WHEN kept.window_start BETWEEN :window_start AND :window_end
        THEN kept.window_start + :window_end - :window_start ELSE :window_end END

-- name: look_ahead(queue, priority, now, per_key, key_rate, window_start, limit)
-- The next jobs in claim order, and whether the key of each is full.
SELECT uid, concurrency_key IS NOT NULL AND concurrency_key IN (
    SELECT key FROM concurrency_keys WHERE queue = :queue AND ({key_is_full})
)
FROM jobs INDEXED BY jobs_claimable WHERE {due} ORDER BY sort_key, uid LIMIT :limit

-- name: block(uids)
UPDATE jobs SET blocked = 1 WHERE uid IN (SELECT value FROM json_each(:uids))

-- name: next_due(queues, now)
-- Idle workers run this often: it steps from priority to priority, and reads the first future job of each.
WITH RECURSIVE priorities (queue, priority) AS (
    SELECT wanted.value, (
        SELECT jobs.priority FROM jobs INDEXED BY jobs_claimable
        WHERE jobs.queue = wanted.value AND {waiting} ORDER BY jobs.priority LIMIT 1
    )
    FROM json_each(:queues) AS wanted
    UNION ALL
    SELECT priorities.queue, (
        SELECT jobs.priority FROM jobs INDEXED BY jobs_claimable
        WHERE jobs.queue = priorities.queue AND jobs.priority > priorities.priority AND {waiting}
        ORDER BY jobs.priority LIMIT 1
    )
    FROM priorities WHERE priorities.priority IS NOT NULL
)
SELECT min((
    SELECT jobs.sort_key FROM jobs INDEXED BY jobs_claimable
    WHERE jobs.queue = priorities.queue AND jobs.priority = priorities.priority AND jobs.sort_key > :now AND {waiting}
    ORDER BY jobs.sort_key LIMIT 1
))
FROM priorities
