-- Statements of a claim: the settings of its queues, the jobs that come next, and the keys that limit them.
-- The claim order within a queue is (priority, sort_key, uid). For FIFO jobs sort_key is eligible_at, so delayed jobs
-- are the end of the index range, which is never read; the sort_key of a LIFO job is below all times.

-- fragment: eligible
status IN ({claim_sources})

-- fragment: now_query
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: now()
-- The server's clock decides what is due and which lease has expired.
{now_query}

-- name: try_locks(spaces, locks, exclusive)
-- Claims share the lock of a queue. A claim under limits locks its slots exclusively. A change of settings locks the
-- queue exclusively. This does not wait, because others may wait for locks of this transaction.
SELECT bool_and(CASE
    WHEN exclusive THEN pg_try_advisory_xact_lock(space, lock) ELSE pg_try_advisory_xact_lock_shared(space, lock)
END) FROM unnest(:spaces::integer[], :locks::integer[], :exclusive::boolean[]) AS wanted (space, lock, exclusive)

-- fragment: index_entries_read
-- How many entries of the claim's indexes this transaction has read, those of dead rows included.
coalesce(pg_stat_get_xact_tuples_returned(to_regclass($name${schema}.jobs_claimable$name$)), 0)
+ coalesce(pg_stat_get_xact_tuples_returned(to_regclass($name${schema}.jobs_of_type$name$)), 0)

-- fragment: named_queues
-- The queues named, or all if :names is NULL.
known AS (
    SELECT name FROM unnest(:names::text[]) AS name
    UNION ALL
    SELECT name FROM ({all_queues}) AS every WHERE :names::text[] IS NULL
)

-- name: held_settings(names)
-- The settings of queues, read after they were locked, with the time after that wait.
WITH {named_queues}
SELECT {index_entries_read}, ({now_query}), NULL, NULL, NULL, NULL, {queue_columns}
FROM (SELECT 1) AS always LEFT JOIN known ON true LEFT JOIN {schema}.queues USING (name)

-- name: held_settings_and_slots(slots, names)
-- The same for queues whose slots are locked (:slots): first it subtracts the released slots from their keys, and
-- deletes keys without running jobs and without an open window. Then it returns the number of running jobs if that is
-- limited, the keys that got slots back if a job is blocked, and when the first and the last window of a key ends. Only
-- the holder of the lock changes keys, so a ctid finds them again. ORDER BY walks the index, which marks dead entries.
WITH taken AS (
    DELETE FROM {schema}.released_slots WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.released_slots WHERE queue = ANY(:slots::text[]) ORDER BY queue, number
    )) RETURNING queue, keys, jobs
),
given_back AS MATERIALIZED (
    SELECT given.queue, given.jobs, kept.*, kept.running_count = given.jobs AND kept.window_ends_at IS NULL AS idle
    FROM (
        SELECT taken.queue, given.key, sum(given.jobs)::bigint AS jobs
        FROM taken CROSS JOIN LATERAL unnest(taken.keys, taken.jobs) AS given (key, jobs)
        GROUP BY taken.queue, given.key
    ) AS given CROSS JOIN LATERAL (
        SELECT ctid AS at, key, running_count, window_start, window_count, window_ends_at
        FROM {schema}.concurrency_keys WHERE queue = given.queue AND key = given.key LIMIT 1
    ) AS kept
),
deleted AS (
    DELETE FROM {schema}.concurrency_keys WHERE ctid = ANY (ARRAY(SELECT at FROM given_back WHERE idle))
),
fewer AS (
    UPDATE {schema}.concurrency_keys AS kept SET running_count = kept.running_count - given_back.jobs FROM given_back
    WHERE kept.ctid = given_back.at AND NOT given_back.idle
),
{named_queues}
SELECT {index_entries_read}, ({now_query}),
    CASE WHEN running_limit IS NOT NULL THEN (
        SELECT sum(jobs)::bigint FROM {schema}.queue_counts
        WHERE queue = known.name AND status IN ({held_statuses})
    ) END,
    CASE WHEN EXISTS (SELECT FROM given_back WHERE given_back.queue = known.name) AND (
        SELECT 1 FROM {schema}.jobs WHERE queue = known.name AND blocked
        ORDER BY concurrency_key, type, priority, sort_key, uid LIMIT 1
    ) IS NOT NULL THEN (
        SELECT json_agg(json_build_array(key, running_count - jobs, window_start, window_count))
        FROM given_back WHERE given_back.queue = known.name
    ) END,
    (
        SELECT window_ends_at FROM {schema}.concurrency_keys
        WHERE queue = known.name AND known.name = ANY(:slots::text[]) AND window_ends_at IS NOT NULL
        ORDER BY window_ends_at LIMIT 1
    ),
    (
        SELECT window_ends_at FROM {schema}.concurrency_keys
        WHERE queue = known.name AND known.name = ANY(:slots::text[]) AND window_ends_at IS NOT NULL
        ORDER BY window_ends_at DESC LIMIT 1
    ),
    {queue_columns}
FROM (SELECT 1) AS always LEFT JOIN known ON true LEFT JOIN {schema}.queues USING (name)

-- fragment: levels
-- Each priority that has jobs to claim, due or not, of the queues in `wanted`: one index seek each. A claim begins
-- after (after_sort_key, after_uid), here at the start.
levels (queue, priority, after_sort_key, after_uid) AS (
    SELECT wanted.queue, (
        SELECT priority FROM {schema}.jobs
        WHERE queue = wanted.queue AND {eligible} AND NOT blocked ORDER BY priority LIMIT 1
    ), (-9223372036854775808)::bigint, 0::bigint
    FROM wanted
    UNION ALL
    SELECT levels.queue, (
        SELECT priority FROM {schema}.jobs
        WHERE queue = levels.queue AND priority > levels.priority AND {eligible} AND NOT blocked
        ORDER BY priority LIMIT 1
    ), levels.after_sort_key, levels.after_uid
    FROM levels WHERE levels.priority IS NOT NULL
)

-- fragment: due_in_level
queue = levels.queue AND priority = levels.priority AND sort_key <= :now AND eligible_at <= :now
AND (sort_key, uid) > (levels.after_sort_key, levels.after_uid) AND {eligible} AND NOT blocked

-- fragment: waiting_of_type
-- The condition of the index jobs_of_type, cast included.
{eligible} AND blocked::int = 0

-- fragment: type_levels
-- The same for each type of `wanted`, from the index jobs_of_type.
type_levels (queue, type, priority, after_sort_key, after_uid) AS (
    SELECT wanted.queue, wanted.type, (
        SELECT priority FROM {schema}.jobs
        WHERE queue = wanted.queue AND type = wanted.type AND {waiting_of_type} ORDER BY priority LIMIT 1
    ), (-9223372036854775808)::bigint, 0::bigint
    FROM wanted
    UNION ALL
    SELECT levels.queue, levels.type, (
        SELECT priority FROM {schema}.jobs
        WHERE queue = levels.queue AND type = levels.type AND priority > levels.priority AND {waiting_of_type}
        ORDER BY priority LIMIT 1
    ), levels.after_sort_key, levels.after_uid
    FROM type_levels AS levels WHERE levels.priority IS NOT NULL
)

-- fragment: due_in_type_level
queue = levels.queue AND type = levels.type AND priority = levels.priority AND sort_key <= :now AND eligible_at <= :now
AND (sort_key, uid) > (levels.after_sort_key, levels.after_uid) AND {waiting_of_type}

-- name: shares_of_queues(queues, now, limit)
-- The queues of the first jobs of all these queues: how many a claim takes from each.
WITH RECURSIVE wanted AS (SELECT queue FROM unnest(:queues::text[]) AS given (queue)), {levels}
SELECT head.queue FROM levels CROSS JOIN LATERAL (
    SELECT queue, priority, sort_key, uid FROM {schema}.jobs WHERE {due_in_level} ORDER BY sort_key, uid LIMIT :limit
) AS head
ORDER BY head.priority, head.sort_key, head.uid LIMIT :limit

-- name: shares_of_queues_by_type(queues, now, limit, types)
WITH RECURSIVE wanted AS (
    SELECT queue, type FROM unnest(:queues::text[]) AS given (queue) CROSS JOIN unnest(:types::text[]) AS also (type)
),
{type_levels}
SELECT head.queue FROM type_levels AS levels CROSS JOIN LATERAL (
    SELECT queue, priority, sort_key, uid FROM {schema}.jobs
    WHERE {due_in_type_level} ORDER BY sort_key, uid LIMIT :limit
) AS head
ORDER BY head.priority, head.sort_key, head.uid LIMIT :limit

-- fragment: none_expired
-- A claim takes nothing while a job is past its expires_at: the caller ends that one first. ORDER BY keeps the planner
-- from reading the table until it finds one.
(
    SELECT true FROM {schema}.jobs WHERE status IN ({expire_sources}) AND expires_at <= :now ORDER BY expires_at LIMIT 1
) IS NULL

-- name: entries_read(now)
-- After a claim of nothing: how far it read, and whether an expired job was the reason.
SELECT {index_entries_read}, NOT ({none_expired})

-- fragment: claimed_at
-- The time of the claim; or the job's last change, if a concurrent transaction made it eligible up to a second later.
CASE WHEN updated_at BETWEEN :now::bigint AND :now::bigint + 1000000 THEN updated_at ELSE :now::bigint END

-- fragment: due_columns
-- The columns that events and counts need come first, because PostgreSQL reads a row up to the last column it needs.
uid, status, retry_count, job_seq, epoch, executions, last_event_xid, updated_at, id, queue, type, sort_key, priority,
lifo, delay, run_at, expires_at, timeout, max_attempts, max_crashes, crashes, created_at, started_at, finalized_at,
last_retry_at, deps_total, on_dependency_failure, idempotency_key, concurrency_key, parent_id, schedule_id, tags,
options, error_message, progress, checkpoint, payload, result

-- fragment: claimed_columns
-- The fields of Job after the claim, with the status before it and, for updated_at, the sort_key. assigned_at is NULL
-- if it is :now, and so are the fields that all jobs of the claim share.
id, type, payload, queue, tags, status, priority, lifo, run_at, delay, expires_at, timeout, max_attempts, max_crashes,
idempotency_key, concurrency_key, parent_id, deps_total, on_dependency_failure, options, uid, executions + 1,
retry_count, crashes, epoch + 1, created_at, sort_key, started_at, finalized_at, last_retry_at,
nullif({claimed_at}, :now::bigint), NULL, NULL, result, error_message, progress, checkpoint, schedule_id

-- fragment: claim
-- Claims the locked rows of `chosen`, with their events and counts. The uids as an array keep the planner at the
-- primary key. The count of `claimed` completes the claim before index_entries_read is evaluated.
claimed AS (
    UPDATE {schema}.jobs SET
        status = {claim_target}, blocked = false, executions = executions + 1, epoch = epoch + 1, job_seq = job_seq + 1,
        updated_at = {claimed_at}, started_at = coalesce(started_at, {claimed_at}), assigned_at = {claimed_at},
        assignee_id = :assignee_id, lease_owner = :assignee_id, lease_token = :lease_token,
        lease_expires_at = :lease_expires_at, last_event_xid = {next_event_xid}
    WHERE uid = ANY (ARRAY(SELECT uid FROM chosen))
    RETURNING uid
),
logged AS (
    INSERT INTO {schema}.job_events (xid, {event_columns})
    SELECT {next_event_xid}, uid, id, job_seq + 1, queue, type, 'job.active', status, {claim_target}, epoch + 1,
        executions + 1, :assignee_id::text, '', {claimed_at}, NULL
    FROM chosen
),
counted AS (
    INSERT INTO {schema}.queue_counts (queue, status, jobs, retries)
    SELECT :queue::text, status, -count(*), -sum(retry_count) FROM chosen GROUP BY status
    UNION ALL
    SELECT :queue::text, {claim_target}, count(*), sum(retry_count) FROM chosen HAVING count(*) > 0
)
SELECT {index_entries_read}, {claimed_columns} FROM (SELECT count(*) FROM claimed) AS all_claimed CROSS JOIN chosen

-- fragment: first_due
-- The first due jobs of `levels`, locked.
due AS MATERIALIZED (
    SELECT due.* FROM levels CROSS JOIN LATERAL (
        SELECT {due_columns} FROM {schema}.jobs WHERE {due_in_level}
        ORDER BY sort_key, uid LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
    ) AS due
    WHERE {none_expired} LIMIT :limit
)

-- name: claim_next(queue, now, limit, assignee_id, lease_token, lease_expires_at)
WITH RECURSIVE wanted AS (SELECT :queue::text AS queue), {levels},
{first_due},
chosen AS NOT MATERIALIZED (SELECT * FROM due),
{claim}

-- name: claim_from_cursor(queue, now, limit, assignee_id, lease_token, lease_expires_at, priorities, sort_keys, uids)
-- The same from where earlier claims ended: before that are entries of dead rows, which stay in the index while an old
-- snapshot is held.
WITH levels AS (
    SELECT :queue::text AS queue, given.*
    FROM unnest(:priorities::bigint[], :sort_keys::bigint[], :uids::bigint[])
    AS given (priority, after_sort_key, after_uid)
),
{first_due},
chosen AS NOT MATERIALIZED (SELECT * FROM due),
{claim}

-- fragment: first_due_of_types
-- Finds the first jobs of all types without locks, then locks as many of each type and priority as it found.
shares AS MATERIALIZED (
    SELECT queue, type, priority, after_sort_key, after_uid, count(*) AS jobs FROM (
        SELECT levels.* FROM type_levels AS levels CROSS JOIN LATERAL (
            SELECT sort_key, uid FROM {schema}.jobs WHERE {due_in_type_level} ORDER BY sort_key, uid LIMIT :limit
        ) AS head
        ORDER BY levels.priority, head.sort_key, head.uid LIMIT :limit
    ) AS heads
    GROUP BY queue, type, priority, after_sort_key, after_uid
),
due AS MATERIALIZED (
    SELECT due.* FROM shares AS levels CROSS JOIN LATERAL (
        SELECT {due_columns} FROM {schema}.jobs WHERE {due_in_type_level}
        ORDER BY sort_key, uid LIMIT levels.jobs FOR NO KEY UPDATE SKIP LOCKED
    ) AS due
    WHERE {none_expired}
)

-- name: claim_types(queue, now, limit, assignee_id, lease_token, lease_expires_at, types)
WITH RECURSIVE wanted AS (SELECT :queue::text AS queue, type FROM unnest(:types::text[]) AS given (type)),
{type_levels},
{first_due_of_types},
chosen AS NOT MATERIALIZED (SELECT * FROM due),
{claim}

-- name: claim_types_from_cursor(queue, now, limit, assignee_id, lease_token, lease_expires_at, types, priorities,
--     sort_keys, uids)
WITH type_levels AS (
    SELECT :queue::text AS queue, wanted.type, given.* FROM unnest(:types::text[]) AS wanted (type)
    CROSS JOIN unnest(:priorities::bigint[], :sort_keys::bigint[], :uids::bigint[])
    AS given (priority, after_sort_key, after_uid)
),
{first_due_of_types},
chosen AS NOT MATERIALIZED (SELECT * FROM due),
{claim}

-- name: claim_chosen(queue, now, uids, assignee_id, lease_token, lease_expires_at)
-- Jobs of one queue that this transaction has chosen and locked.
WITH chosen AS MATERIALIZED (
    SELECT {due_columns} FROM {schema}.jobs WHERE uid = ANY(:uids::bigint[]) AND {eligible}
),
{claim}

-- fragment: chosen_within_keys
-- Of the locked jobs `due`, the first :wanted_jobs whose keys have free slots: at most :per_key running, and at most
-- :rate_count started in the window. Chooses none if more than :most_skipped are skipped, or if :limit jobs were
-- read and are not enough: the caller then decides job by job. The slots are subtracted from the keys.
judged AS (
    SELECT uid, priority, sort_key, concurrency_key IS NULL OR (
        (:per_key::bigint IS NULL OR coalesce(kept.running_count, 0) + nth <= :per_key)
        AND (:rate_count::bigint IS NULL OR coalesce(kept.started, 0) + nth <= :rate_count)
    ) AS fits
    FROM (
        SELECT uid, priority, sort_key, concurrency_key,
            row_number() OVER (PARTITION BY concurrency_key ORDER BY priority, sort_key, uid) AS nth
        FROM due
    ) AS ranked
    LEFT JOIN LATERAL (
        SELECT running_count,
            CASE WHEN window_start BETWEEN :window_from AND :window_to THEN window_count ELSE 0 END AS started
        FROM {schema}.concurrency_keys WHERE queue = :queue AND key = ranked.concurrency_key LIMIT 1
    ) AS kept ON true
),
numbered AS MATERIALIZED (
    SELECT uid, fits, count(*) FILTER (WHERE fits) OVER in_order AS fitting,
        count(*) FILTER (WHERE NOT fits) OVER in_order AS passed
    FROM judged WINDOW in_order AS (ORDER BY priority, sort_key, uid ROWS UNBOUNDED PRECEDING)
),
chosen AS MATERIALIZED (
    SELECT * FROM due WHERE uid = ANY (ARRAY(SELECT uid FROM numbered WHERE fits AND fitting <= :wanted_jobs))
    AND ((SELECT max(fitting) FROM numbered) >= :wanted_jobs OR (SELECT count(*) FROM numbered) < :limit)
    AND (SELECT max(passed) FROM numbered WHERE fits AND fitting <= :wanted_jobs) <= :most_skipped
),
used AS (
    INSERT INTO {schema}.concurrency_keys AS kept ({key_columns})
    SELECT :queue, concurrency_key, count(*),
        CASE WHEN :rate_count::bigint IS NULL THEN 0 ELSE :window_from::bigint END,
        CASE WHEN :rate_count::bigint IS NULL THEN 0 ELSE count(*) END,
        CASE WHEN :rate_count::bigint IS NOT NULL THEN :window_to::bigint END
    FROM chosen WHERE concurrency_key IS NOT NULL GROUP BY concurrency_key
    ON CONFLICT (queue, key) DO UPDATE SET
        running_count = kept.running_count + excluded.running_count,
        window_count = CASE WHEN :rate_count::bigint IS NULL THEN kept.window_count
            WHEN kept.window_start BETWEEN :window_from AND :window_to THEN kept.window_count + excluded.window_count
            ELSE excluded.window_count END,
        window_start = CASE WHEN :rate_count::bigint IS NULL OR kept.window_start BETWEEN :window_from AND :window_to
            THEN kept.window_start ELSE excluded.window_start END,
        window_ends_at = CASE WHEN :rate_count::bigint IS NULL THEN kept.window_ends_at
            WHEN kept.window_start BETWEEN :window_from AND :window_to
            THEN kept.window_start + :window_to - :window_from ELSE excluded.window_ends_at END
)

-- name: claim_within_keys(queue, now, wanted_jobs, assignee_id, lease_token, lease_expires_at, limit, most_skipped,
--     per_key, rate_count, window_from, window_to)
-- A claim from a queue that limits its keys; the transaction holds the queue's slots.
WITH RECURSIVE wanted AS (SELECT :queue::text AS queue), {levels},
{first_due},
{chosen_within_keys},
{claim}

-- name: claim_types_within_keys(queue, now, wanted_jobs, assignee_id, lease_token, lease_expires_at, limit,
--     most_skipped, per_key, rate_count, window_from, window_to, types)
WITH RECURSIVE wanted AS (SELECT :queue::text AS queue, type FROM unnest(:types::text[]) AS given (type)),
{type_levels},
{first_due_of_types},
{chosen_within_keys},
{claim}

-- fragment: candidate_columns
priority, sort_key, uid, queue, concurrency_key, expires_at, blocked

-- fragment: with_keys
-- The candidates with the state of their keys.
SELECT candidates.*, coalesce(kept.running_count, 0), coalesce(kept.window_start, 0), coalesce(kept.window_count, 0)
FROM candidates LEFT JOIN LATERAL (
    SELECT running_count, window_start, window_count FROM {schema}.concurrency_keys
    WHERE queue = :queue AND key = candidates.concurrency_key LIMIT 1
) AS kept ON true

-- name: first_candidates(queue, now, limit)
WITH RECURSIVE wanted AS (SELECT :queue::text AS queue), {levels},
candidates AS MATERIALIZED (
    SELECT due.* FROM levels CROSS JOIN LATERAL (
        SELECT {candidate_columns} FROM {schema}.jobs WHERE {due_in_level}
        ORDER BY sort_key, uid LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
    ) AS due
    LIMIT :limit
)
{with_keys}

-- name: next_priority(queue, after_priority)
SELECT priority FROM {schema}.jobs
WHERE queue = :queue AND priority > :after_priority AND {eligible} AND NOT blocked ORDER BY priority LIMIT 1

-- fragment: due_in_priority
queue = :queue AND priority = :priority AND sort_key <= :now AND eligible_at <= :now AND {eligible} AND NOT blocked

-- fragment: full_keys
SELECT key FROM {schema}.concurrency_keys WHERE queue = :queue AND (
    running_count >= :per_key::bigint OR (window_count >= :rate_count::bigint AND window_start >= :window_from::bigint)
)

-- name: claimable(queue, priority, now, after_sort_key, after_uid, limit)
WITH candidates AS MATERIALIZED (
    SELECT {candidate_columns} FROM {schema}.jobs
    WHERE {due_in_priority} AND (sort_key, uid) > (:after_sort_key::bigint, :after_uid::bigint)
    ORDER BY sort_key, uid LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
)
{with_keys}

-- name: claimable_with_free_slots(queue, priority, now, per_key, rate_count, window_from, after_sort_key, after_uid,
--     limit)
-- Skips jobs of full keys, and does not lock them.
WITH candidates AS MATERIALIZED (
    SELECT {candidate_columns} FROM {schema}.jobs
    WHERE {due_in_priority} AND (concurrency_key IS NULL OR concurrency_key NOT IN ({full_keys}))
    AND (sort_key, uid) > (:after_sort_key::bigint, :after_uid::bigint)
    ORDER BY sort_key, uid LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
)
{with_keys}

-- name: candidates_of_types(queue, now, limit, after_priority, after_sort_key, after_uid, types)
WITH RECURSIVE wanted AS (SELECT :queue::text AS queue, type FROM unnest(:types::text[]) AS given (type)),
{type_levels},
heads AS MATERIALIZED (
    SELECT head.* FROM type_levels AS levels CROSS JOIN LATERAL (
        SELECT priority, sort_key, uid FROM {schema}.jobs WHERE {due_in_type_level}
        AND (priority, sort_key, uid) > (:after_priority::bigint, :after_sort_key::bigint, :after_uid::bigint)
        ORDER BY sort_key, uid LIMIT :limit
    ) AS head
    ORDER BY head.priority, head.sort_key, head.uid LIMIT :limit
),
candidates AS MATERIALIZED (
    SELECT due.* FROM heads CROSS JOIN LATERAL (
        SELECT {candidate_columns} FROM {schema}.jobs
        WHERE uid = heads.uid AND {waiting_of_type} FOR NO KEY UPDATE SKIP LOCKED
    ) AS due
    ORDER BY heads.priority, heads.sort_key, heads.uid
)
{with_keys}

-- name: look_ahead(queue, priority, now, per_key, rate_count, window_from, limit)
SELECT uid, concurrency_key IS NOT NULL AND concurrency_key IN ({full_keys})
FROM {schema}.jobs WHERE {due_in_priority} ORDER BY sort_key, uid LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: waiting_with_tag(tag, limit)
-- ORDER BY keeps the planner at the index, however common it thinks the tag is.
SELECT count(*) FROM (
    SELECT 1 FROM {schema}.job_tags WHERE tag = :tag AND claimable ORDER BY queue, priority, sort_key LIMIT :limit
) AS few

-- name: next_tagged_priority(tag, queue, after_priority)
SELECT priority FROM {schema}.job_tags
WHERE tag = :tag AND queue = :queue AND priority > :after_priority AND claimable ORDER BY priority LIMIT 1

-- name: tagged_claimable(tag, queue, priority, now, other_tags, after_sort_key, after_uid, limit, types, per_key,
--     rate_count, window_from)
-- Reads the index of the rarest tag in order, then visits and locks the jobs one by one: no more than are wanted.
SELECT due.* FROM (
    SELECT uid, sort_key FROM {schema}.job_tags AS tagged
    WHERE tag = :tag AND queue = :queue AND priority = :priority AND sort_key <= :now AND claimable
    AND (sort_key, uid) > (:after_sort_key::bigint, :after_uid::bigint)
    AND (cardinality(:other_tags::text[]) = 0 OR :other_tags COLLATE "C" <@ ARRAY(
        SELECT tag FROM {schema}.job_tags WHERE uid = tagged.uid
    ))
    ORDER BY sort_key, uid OFFSET 0
) AS first CROSS JOIN LATERAL (
    SELECT {candidate_columns} FROM {schema}.jobs
    WHERE uid = first.uid AND eligible_at <= :now AND {eligible} AND (:types::text[] IS NULL OR type = ANY (:types))
    AND (concurrency_key IS NULL OR concurrency_key NOT IN ({full_keys}))
    FOR NO KEY UPDATE SKIP LOCKED
) AS due
ORDER BY first.sort_key, first.uid LIMIT :limit

-- name: block(uids)
UPDATE {schema}.jobs SET blocked = true WHERE uid = ANY(:uids::bigint[])

-- name: any_blocked(queue)
-- ORDER BY keeps the planner at the index.
SELECT 1 FROM {schema}.jobs WHERE queue = :queue AND blocked
ORDER BY concurrency_key, type, priority, sort_key, uid LIMIT 1

-- name: unblock_first(queue, keys, free_slots)
-- As many jobs as each key has free slots, and as many of each type, because a claim may name any of them. It waits for
-- locked jobs: a skipped job would stay blocked.
WITH RECURSIVE key_types (key, free_slots, type) AS (
    SELECT given.key, given.free_slots, (
        SELECT type FROM {schema}.jobs
        WHERE queue = :queue AND concurrency_key = given.key AND blocked ORDER BY type LIMIT 1
    ) FROM unnest(:keys::text[], :free_slots::bigint[]) AS given (key, free_slots)
    UNION ALL
    SELECT key_types.key, key_types.free_slots, (
        SELECT type FROM {schema}.jobs
        WHERE queue = :queue AND concurrency_key = key_types.key AND type > key_types.type AND blocked
        ORDER BY type LIMIT 1
    ) FROM key_types WHERE key_types.type IS NOT NULL
),
unblocked AS MATERIALIZED (
    SELECT first.uid FROM key_types CROSS JOIN LATERAL (
        SELECT uid FROM {schema}.jobs
        WHERE queue = :queue AND concurrency_key = key_types.key AND type = key_types.type AND blocked
        ORDER BY priority, sort_key, uid LIMIT key_types.free_slots FOR NO KEY UPDATE
    ) AS first
)
UPDATE {schema}.jobs SET blocked = false WHERE uid = ANY (ARRAY(SELECT uid FROM unblocked))

-- name: unblock(uids)
UPDATE {schema}.jobs SET blocked = false WHERE uid = ANY(:uids::bigint[])

-- name: key_states(queue, keys)
SELECT {key_state_columns} FROM {schema}.concurrency_keys WHERE queue = :queue AND key = ANY(:keys::text[])

-- name: put_key(queues, keys, running_counts, window_starts, window_counts, window_ends_at)
INSERT INTO {schema}.concurrency_keys ({key_columns})
SELECT * FROM unnest(
    :queues::text[], :keys::text[], :running_counts::bigint[], :window_starts::bigint[], :window_counts::bigint[],
    :window_ends_at::bigint[]
)
ON CONFLICT (queue, key) DO UPDATE SET
    running_count = excluded.running_count, window_start = excluded.window_start, window_count = excluded.window_count,
    window_ends_at = excluded.window_ends_at

-- name: forget_keys(queue, keys)
DELETE FROM {schema}.concurrency_keys WHERE queue = :queue AND key = ANY(:keys::text[])
