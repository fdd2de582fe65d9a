-- name: job_columns
uid, id, queue, type, payload, tags, options, priority, lifo, delay, expires_at, timeout, max_attempts, max_crashes,
idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id, deps_total, created_at, deps_left,
status, run_at, eligible_at, place, blocked, executions, retry_count, crashes, epoch, job_seq, updated_at, started_at,
finalized_at, last_retry_at, assigned_at, assignee_id, lease_owner, lease_token, lease_expires_at,
announce_at, cancel_asked_at, result, error_message, progress, checkpoint

-- name: now
-- The one clock that judges due times and leases, whichever machine asks.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: job_by_id
SELECT {job_columns} FROM {schema}.jobs WHERE id = $1

-- name: jobs_by_ids
-- Locked in the order of their uids, as everywhere: whoever wants the same rows waits, and nobody in a circle.
SELECT {job_columns} FROM {schema}.jobs WHERE id = ANY($1::text[]) ORDER BY uid FOR UPDATE

-- name: jobs_seen
SELECT {job_columns} FROM {schema}.jobs WHERE id = ANY($1::text[])

-- name: jobs_to_renew
-- A renewal ends nothing, so it does not wait for those who only need the job to go on.
SELECT {job_columns} FROM {schema}.jobs WHERE id = ANY($1::text[]) ORDER BY uid FOR NO KEY UPDATE

-- name: jobs_by_uids
SELECT {job_columns} FROM {schema}.jobs WHERE uid = ANY($1::bigint[]) ORDER BY uid FOR UPDATE

-- name: all_concerned
-- Jobs, and from each to those who end with it or go on without it, job by job down the index of open edges.
WITH RECURSIVE concerned AS (
    SELECT uid FROM {schema}.jobs WHERE id = ANY($1::text[]) OR uid = ANY($2::bigint[])
    UNION
    SELECT edge.dependent_uid FROM concerned CROSS JOIN LATERAL (
        SELECT edge.dependent_uid FROM {schema}.jobs
        JOIN {schema}.job_dependencies AS edge ON edge.depends_on = jobs.id AND edge.state <> 'satisfied'
        WHERE jobs.uid = concerned.uid AND edge.state = 'waiting' AND edge.policy <> 'wait' OFFSET 0
    ) AS edge
)
SELECT uid, queue, lease_token IS NOT NULL FROM {schema}.jobs WHERE uid = ANY (ARRAY(SELECT uid FROM concerned))

-- name: hold_jobs
SELECT uid FROM {schema}.jobs WHERE uid = ANY($1::bigint[]) ORDER BY uid FOR UPDATE

-- name: jobs_held
SELECT {job_columns} FROM {schema}.jobs
WHERE lease_token IS NOT NULL AND ($1::text IS NULL OR queue = $1) ORDER BY uid FOR UPDATE

-- name: jobs_held_by
SELECT {job_columns} FROM {schema}.jobs WHERE lease_owner = $1 AND lease_token IS NOT NULL ORDER BY uid FOR UPDATE

-- name: leases_ended
-- From one worker who holds jobs to the next, and of each the leases that have ended: nothing else is visited. What
-- somebody is settling at this moment is left alone. A job that was set running by hand has nobody's name on it.
WITH RECURSIVE owners AS (
    (SELECT lease_owner FROM {schema}.jobs WHERE lease_token IS NOT NULL ORDER BY lease_owner LIMIT 1)
    UNION ALL
    SELECT (
        SELECT held.lease_owner FROM {schema}.jobs AS held
        WHERE held.lease_owner > owners.lease_owner AND held.lease_token IS NOT NULL ORDER BY held.lease_owner LIMIT 1
    )
    FROM owners WHERE owners.lease_owner IS NOT NULL
),
ended AS MATERIALIZED (
    SELECT late.uid, late.lease_expires_at FROM owners CROSS JOIN LATERAL (
        SELECT held.uid, held.lease_expires_at FROM {schema}.jobs AS held
        WHERE held.lease_owner = owners.lease_owner AND held.lease_expires_at <= $1 AND held.lease_token IS NOT NULL
        ORDER BY held.lease_expires_at, held.uid LIMIT $2 FOR UPDATE SKIP LOCKED
    ) AS late
    UNION ALL
    SELECT late.uid, late.lease_expires_at FROM (
        SELECT held.uid, held.lease_expires_at FROM {schema}.jobs AS held
        WHERE held.lease_owner IS NULL AND held.lease_expires_at <= $1 AND held.lease_token IS NOT NULL
        ORDER BY held.lease_expires_at, held.uid LIMIT $2 FOR UPDATE SKIP LOCKED
    ) AS late
)
SELECT {job_columns} FROM {schema}.jobs
WHERE uid = ANY (ARRAY(SELECT uid FROM ended ORDER BY lease_expires_at, uid LIMIT $2))
ORDER BY lease_expires_at, uid FOR UPDATE

-- name: cancellations_since
SELECT {job_columns} FROM {schema}.jobs
WHERE status = 'CANCELLING' AND cancel_asked_at <= $1
ORDER BY cancel_asked_at, uid LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: jobs_outlived
-- The statuses are spelled out: as parameters they would lose the partial index.
SELECT {job_columns} FROM {schema}.jobs
WHERE expires_at <= $1 AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY', 'WAITING_CHILDREN')
ORDER BY expires_at, uid LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: jobs_ended_before
SELECT {job_columns} FROM {schema}.jobs
WHERE queue = $1 AND status = $2 AND finalized_at <= $3
ORDER BY finalized_at, uid LIMIT $4 FOR UPDATE SKIP LOCKED

-- name: jobs_beyond
-- The count tells how many there are too many, so that only those are read. They are chosen before any is locked: whoever
-- passed over locked ones would come to those that are to be kept. Whoever was retried meanwhile stays.
SELECT {job_columns} FROM {schema}.jobs WHERE uid = ANY (ARRAY(
    SELECT uid FROM {schema}.jobs
    WHERE queue = $1 AND status = $2 AND finalized_at IS NOT NULL
    ORDER BY finalized_at, uid
    LIMIT greatest(0, least($4::bigint, (
        SELECT coalesce(sum(jobs), 0)::bigint FROM {schema}.queue_counts WHERE queue = $1 AND status = $2
    ) - $3::bigint))
))
AND status = $2 ORDER BY finalized_at, uid FOR UPDATE SKIP LOCKED

-- name: jobs_created_before
SELECT {job_columns} FROM {schema}.jobs
WHERE queue = $1 AND status = 'CREATED' AND created_at <= $2
ORDER BY created_at, uid LIMIT $3 FOR UPDATE SKIP LOCKED

-- name: eligible
status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY')

-- name: next_priority
-- One step down the claim's index to the next priority that has anybody in line, due or not.
SELECT priority FROM {schema}.jobs
WHERE queue = $1 AND priority > $2 AND {eligible} AND NOT blocked ORDER BY priority LIMIT 1

-- name: in_line
queue = $1 AND priority = $2 AND place <= $3 AND eligible_at <= $3 AND {eligible} AND NOT blocked

-- name: full_keys
SELECT key FROM {schema}.concurrency_keys
WHERE queue = $1 AND (running_count >= $4::bigint OR (window_count >= $5::bigint AND window_start >= $6::bigint))

-- name: line_columns
-- A job as a claim looks at it, to choose or pass over.
jobs.priority, jobs.place, jobs.uid, jobs.queue, jobs.concurrency_key, jobs.expires_at, jobs.blocked

-- name: with_keys
-- What is known of their keys beside them.
SELECT line.*, coalesce(kept.running_count, 0), coalesce(kept.window_start, 0), coalesce(kept.window_count, 0)
FROM line LEFT JOIN LATERAL (
    SELECT running_count, window_start, window_count FROM {schema}.concurrency_keys
    WHERE queue = $1 AND key = line.concurrency_key LIMIT 1
) AS kept ON true

-- name: claimable
-- For FIFO jobs place is eligible_at, so future ones are the tail that is never read; LIFO jobs are judged one by one.
WITH line AS MATERIALIZED (
    SELECT {line_columns} FROM {schema}.jobs WHERE {in_line} AND (place, uid) > ($4::bigint, $5::bigint)
    ORDER BY place, uid LIMIT $6 FOR NO KEY UPDATE SKIP LOCKED
)
{with_keys}

-- name: head_of_line
-- The first of all priorities at once.
WITH RECURSIVE priorities AS (
{priorities_in_line}
),
line AS MATERIALIZED (
    SELECT head.* FROM priorities CROSS JOIN LATERAL (
        SELECT {line_columns} FROM {schema}.jobs
        WHERE jobs.queue = $1 AND jobs.priority = priorities.priority AND jobs.place <= $2 AND jobs.eligible_at <= $2
        AND jobs.{eligible} AND NOT jobs.blocked
        ORDER BY jobs.place, jobs.uid LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED
    ) AS head
    LIMIT $3
)
{with_keys}

-- name: claimable_with_free_slots
-- Jobs of keys that are full already are passed over here, where it is cheap.
WITH line AS MATERIALIZED (
    SELECT {line_columns} FROM {schema}.jobs
    WHERE {in_line} AND (concurrency_key IS NULL OR concurrency_key NOT IN ({full_keys}))
    AND (place, uid) > ($7::bigint, $8::bigint) ORDER BY place, uid LIMIT $9 FOR NO KEY UPDATE SKIP LOCKED
)
{with_keys}

-- name: look_ahead
SELECT uid, concurrency_key IS NOT NULL AND concurrency_key IN ({full_keys})
FROM {schema}.jobs WHERE {in_line} ORDER BY place, uid LIMIT $7 FOR UPDATE SKIP LOCKED

-- name: next_tagged_priority
SELECT priority FROM {schema}.job_tags
WHERE tag = $1 AND queue = $2 AND priority > $3 AND claimable ORDER BY priority LIMIT 1

-- name: tagged_in_line
-- Driven by the rarest tag; the others are looked up by their key. First who stands in line, in order, which the index
-- of tags alone can tell; then one by one they are visited and locked, and no more of them than are wanted.
(
    SELECT tagged.uid, tagged.place FROM {schema}.job_tags AS tagged
    WHERE tagged.tag = $1 AND tagged.queue = $2 AND tagged.priority = $3 AND tagged.place <= $4 AND tagged.claimable
    AND (tagged.place, tagged.uid) > ($6::bigint, $7::bigint)
    AND (cardinality($5::text[]) = 0 OR $5 COLLATE "C" <@ ARRAY(
        SELECT also.tag FROM {schema}.job_tags AS also WHERE also.uid = tagged.uid
    ))
    ORDER BY tagged.place, tagged.uid OFFSET 0
) AS first CROSS JOIN LATERAL (
    SELECT * FROM {schema}.jobs WHERE jobs.uid = first.uid AND jobs.eligible_at <= $4 AND jobs.{eligible}
    AND ($9::text[] IS NULL OR jobs.type = ANY ($9))

-- name: jobs_columns
jobs.uid, jobs.id, jobs.queue, jobs.type, jobs.payload, jobs.tags, jobs.options, jobs.priority, jobs.lifo, jobs.delay,
jobs.expires_at, jobs.timeout, jobs.max_attempts, jobs.max_crashes, jobs.idempotency_key, jobs.concurrency_key,
jobs.parent_id, jobs.on_dependency_failure, jobs.schedule_id, jobs.deps_total, jobs.created_at, jobs.deps_left,
jobs.status, jobs.run_at, jobs.eligible_at, jobs.place, jobs.blocked, jobs.executions, jobs.retry_count, jobs.crashes,
jobs.epoch, jobs.job_seq, jobs.updated_at, jobs.started_at, jobs.finalized_at, jobs.last_retry_at, jobs.assigned_at,
jobs.assignee_id, jobs.lease_owner, jobs.lease_token, jobs.lease_expires_at, jobs.announce_at, jobs.cancel_asked_at,
jobs.result, jobs.error_message, jobs.progress, jobs.checkpoint

-- name: tagged_claimable
SELECT {line_columns} FROM {tagged_in_line}
    FOR NO KEY UPDATE SKIP LOCKED
) AS jobs
ORDER BY first.place, first.uid LIMIT $8

-- name: tagged_with_free_slots
SELECT {line_columns} FROM {tagged_in_line}
    AND (jobs.concurrency_key IS NULL OR jobs.concurrency_key NOT IN (
        SELECT key FROM {schema}.concurrency_keys
        WHERE queue = $2 AND (running_count >= $10::bigint OR (window_count >= $11::bigint AND window_start >= $12::bigint))
    ))
    FOR NO KEY UPDATE SKIP LOCKED
) AS jobs
ORDER BY first.place, first.uid LIMIT $8

-- name: waiting_with_tag
-- In the order of its index, or a planner who thinks the tag common would look for some from the start of the table.
SELECT count(*) FROM (
    SELECT 1 FROM {schema}.job_tags WHERE tag = $1 AND claimable ORDER BY queue, priority, place LIMIT $2
) AS few

-- name: next_told
-- Where the job's next event stands: never before its last one, which a transaction that began later may have written.
greatest(jobs.last_event_xid, pg_current_xact_id())

-- name: priorities_in_line
-- From one priority that has anybody in line to the next: a step each, however many are in line.
SELECT (
    SELECT first.priority FROM {schema}.jobs AS first
    WHERE first.queue = $1 AND first.{eligible} AND NOT first.blocked ORDER BY first.priority LIMIT 1
) AS priority
UNION ALL
SELECT (
    SELECT following.priority FROM {schema}.jobs AS following
    WHERE following.queue = $1 AND following.priority > priorities.priority
    AND following.{eligible} AND NOT following.blocked ORDER BY following.priority LIMIT 1
)
FROM priorities WHERE priorities.priority IS NOT NULL

-- name: claimed_at
-- When a job is claimed: now; or when it was let into the line, if that was done side by side with this claim, and is a
-- little later. A clock that was set back by more is believed.
CASE WHEN updated_at BETWEEN $2::bigint AND $2::bigint + 1000000 THEN updated_at ELSE $2::bigint END

-- name: due_columns
-- First what tells of a job once it is claimed, then the rest of it.
    due.uid, due.status AS was, due.retry_count, due.job_seq + 1 AS job_seq, due.epoch + 1 AS epoch,
    due.executions + 1 AS executions, greatest(due.last_event_xid, pg_current_xact_id()) AS told, {claimed_at} AS claimed_at,
    due.id, due.queue, due.type,
    due.place, due.priority, due.lifo, due.delay, due.run_at, due.expires_at, due.timeout, due.max_attempts,
    due.max_crashes, due.crashes, due.created_at, due.started_at, due.finalized_at, due.last_retry_at, due.deps_total,
    due.on_dependency_failure, due.idempotency_key, due.concurrency_key, due.parent_id, due.schedule_id, due.tags,
    due.options, due.error_message, due.progress, due.checkpoint, due.payload, due.result

-- name: due_in_line
-- One priority's share of the line, locked.
SELECT
{due_columns}
FROM {schema}.jobs AS due
WHERE due.queue = $1 AND due.priority = priorities.priority AND due.place <= $2 AND due.eligible_at <= $2
AND due.{eligible} AND NOT due.blocked

-- name: claim_columns
-- A job as it is once it is claimed, in the order of the fields of Job. What all jobs of a claim share is left out, and
-- two of those columns carry something else: what its status was, and (for updated_at) its place in line. When it was
-- assigned is told if it is not now.
id, type, payload, queue, tags, was, priority, lifo, run_at, delay, expires_at, timeout, max_attempts, max_crashes,
idempotency_key, concurrency_key, parent_id, deps_total, on_dependency_failure, options, uid, executions, retry_count,
crashes, epoch, created_at, place, started_at, finalized_at, last_retry_at, nullif(claimed_at, $2::bigint), NULL, NULL,
result, error_message, progress, checkpoint, schedule_id

-- name: first_outlived
-- One who waits and is past their time. The first in order is asked for rather than whether there is any: then no planner
-- thinks that reading the whole table would find one soon.
SELECT true FROM {schema}.jobs AS late
WHERE late.status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY', 'WAITING_CHILDREN') AND late.expires_at <=

-- name: claiming
-- The rest of the claim: the rows of `chosen` are claimed, told and counted in the same statement. If anybody is past
-- their time, nobody is chosen: they are ended on the way, which takes a closer look at each. An array of uids
-- rather than a join keeps the planner at the primary key, however many it thinks were chosen. That the claimed are
-- counted makes sure that the whole line was read when the entries read are asked for.
claimed AS (
    UPDATE {schema}.jobs SET
        status = 'RUNNING', blocked = false, executions = executions + 1, epoch = epoch + 1, job_seq = job_seq + 1,
        updated_at = {claimed_at}, started_at = coalesce(started_at, {claimed_at}), assigned_at = {claimed_at},
        assignee_id = $4, lease_owner = $4, lease_token = $5, lease_expires_at = $6, last_event_xid = {next_told}
    WHERE uid = ANY (ARRAY(SELECT uid FROM chosen))
    RETURNING uid
),
told AS (
    INSERT INTO {schema}.job_events (xid, {event_row})
    SELECT told, uid, id, job_seq, queue, type, 'job.active', was, 'RUNNING', epoch, executions, $4::text, '',
        claimed_at, NULL
    FROM chosen
),
counted AS (
    INSERT INTO {schema}.queue_counts (queue, status, jobs, retries)
    SELECT $1::text, was, -count(*), -sum(retry_count) FROM chosen GROUP BY was
    UNION ALL
    SELECT $1::text, 'RUNNING', count(*), sum(retry_count) FROM chosen HAVING count(*) > 0
)
SELECT {entries_of_line}, {claim_columns} FROM (SELECT count(*) FROM claimed) AS all_claimed CROSS JOIN chosen

-- name: claim_next
WITH RECURSIVE priorities AS (
{priorities_in_line}
),
chosen AS MATERIALIZED (
    SELECT line.* FROM priorities CROSS JOIN LATERAL (
        {due_in_line}
        ORDER BY due.place, due.uid LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED
    ) AS line
    WHERE ({first_outlived} $2 ORDER BY late.expires_at LIMIT 1) IS NULL
    LIMIT $3
),
{claiming}

-- name: claim_from_cursor
-- The same, from marks that were reached before: what lies before them is the remains of jobs claimed long since, which
-- cannot be cleared away while somebody holds an old snapshot.
WITH priorities AS (
    SELECT * FROM unnest($7::bigint[], $8::bigint[], $9::bigint[]) AS mark (priority, place, uid)
),
chosen AS MATERIALIZED (
    SELECT line.* FROM priorities CROSS JOIN LATERAL (
        {due_in_line} AND (due.place, due.uid) > (priorities.place, priorities.uid)
        ORDER BY due.place, due.uid LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED
    ) AS line
    WHERE ({first_outlived} $2 ORDER BY late.expires_at LIMIT 1) IS NULL
    LIMIT $3
),
{claiming}

-- name: waits_in_line
-- The conditions of the index of types.
{eligible} AND blocked::int = 0

-- name: lines_of_types
-- Every wanted type with each priority of its jobs, due or not: one index seek each.
SELECT wanted.type, (
    SELECT first.priority FROM {schema}.jobs AS first
    WHERE first.queue = $1 AND first.type = wanted.type AND {waits_in_line} ORDER BY first.priority LIMIT 1
) AS priority
FROM unnest($7::text[]) AS wanted (type)
UNION ALL
SELECT lines.type, (
    SELECT following.priority FROM {schema}.jobs AS following
    WHERE following.queue = $1 AND following.type = lines.type AND following.priority > lines.priority
    AND {waits_in_line} ORDER BY following.priority LIMIT 1
)
FROM lines WHERE lines.priority IS NOT NULL

-- name: due_of_type
due.type = lines.type AND due.priority = lines.priority AND due.place <= $2 AND due.eligible_at <= $2
AND {waits_in_line}

-- name: claim_of_types
-- Jobs of some types ($7). Finds the first jobs of all these types without locks, then locks as many of each type and
-- priority as it found.
WITH RECURSIVE lines AS (
{lines_of_types}
),
shares AS MATERIALIZED (
    SELECT type, priority, count(*) AS jobs FROM (
        SELECT head.* FROM lines CROSS JOIN LATERAL (
            SELECT due.type, due.priority, due.place, due.uid FROM {schema}.jobs AS due
            WHERE due.queue = $1 AND {due_of_type} ORDER BY due.place, due.uid LIMIT $3
        ) AS head
        ORDER BY head.priority, head.place, head.uid LIMIT $3
    ) AS heads
    GROUP BY type, priority
),
chosen AS MATERIALIZED (
    SELECT line.* FROM shares AS lines CROSS JOIN LATERAL (
        SELECT
        {due_columns}
        FROM {schema}.jobs AS due
        WHERE due.queue = $1 AND {due_of_type} ORDER BY due.place, due.uid LIMIT lines.jobs FOR NO KEY UPDATE SKIP LOCKED
    ) AS line
    WHERE ({first_outlived} $2 ORDER BY late.expires_at LIMIT 1) IS NULL
),
{claiming}

-- name: claim_of_types_further_on
-- The same, starting from low-water marks.
WITH lines AS MATERIALIZED (
    SELECT wanted.type, mark.* FROM unnest($7::text[]) AS wanted (type)
    CROSS JOIN unnest($8::bigint[], $9::bigint[], $10::bigint[]) AS mark (priority, place, uid)
),
shares AS MATERIALIZED (
    SELECT type, priority, count(*) AS jobs FROM (
        SELECT head.* FROM lines CROSS JOIN LATERAL (
            SELECT due.type, due.priority, due.place, due.uid FROM {schema}.jobs AS due
            WHERE due.queue = $1 AND {due_of_type} AND (due.place, due.uid) > (lines.place, lines.uid)
            ORDER BY due.place, due.uid LIMIT $3
        ) AS head
        ORDER BY head.priority, head.place, head.uid LIMIT $3
    ) AS heads
    GROUP BY type, priority
),
chosen AS MATERIALIZED (
    SELECT line.* FROM lines JOIN shares USING (type, priority) CROSS JOIN LATERAL (
        SELECT
        {due_columns}
        FROM {schema}.jobs AS due
        WHERE due.queue = $1 AND {due_of_type} AND (due.place, due.uid) > (lines.place, lines.uid)
        ORDER BY due.place, due.uid LIMIT shares.jobs FOR NO KEY UPDATE SKIP LOCKED
    ) AS line
    WHERE ({first_outlived} $2 ORDER BY late.expires_at LIMIT 1) IS NULL
),
{claiming}

-- name: heads_of_types
-- The first jobs of some types in several queues ($1), to count how many of the first jobs are in each queue.
WITH RECURSIVE lines AS (
    SELECT line.queue, wanted.type, (
        SELECT first.priority FROM {schema}.jobs AS first
        WHERE first.queue = line.queue AND first.type = wanted.type AND {waits_in_line}
        ORDER BY first.priority LIMIT 1
    ) AS priority
    FROM unnest($1::text[]) AS line (queue) CROSS JOIN unnest($4::text[]) AS wanted (type)
    UNION ALL
    SELECT lines.queue, lines.type, (
        SELECT following.priority FROM {schema}.jobs AS following
        WHERE following.queue = lines.queue AND following.type = lines.type AND following.priority > lines.priority
        AND {waits_in_line} ORDER BY following.priority LIMIT 1
    )
    FROM lines WHERE lines.priority IS NOT NULL
)
SELECT head.queue FROM lines CROSS JOIN LATERAL (
    SELECT due.queue, due.priority, due.place, due.uid FROM {schema}.jobs AS due
    WHERE due.queue = lines.queue AND {due_of_type} ORDER BY due.place, due.uid LIMIT $3
) AS head
ORDER BY head.priority, head.place, head.uid LIMIT $3

-- name: candidates_of_types
-- Jobs of some types ($7) after priority $4, place $5 and uid $6.
WITH RECURSIVE lines AS (
{lines_of_types}
),
heads AS MATERIALIZED (
    SELECT head.* FROM lines CROSS JOIN LATERAL (
        SELECT due.priority, due.place, due.uid FROM {schema}.jobs AS due
        WHERE due.queue = $1 AND {due_of_type}
        AND (due.priority, due.place, due.uid) > ($4::bigint, $5::bigint, $6::bigint)
        ORDER BY due.place, due.uid LIMIT $3
    ) AS head
    ORDER BY head.priority, head.place, head.uid LIMIT $3
),
line AS MATERIALIZED (
    SELECT {line_columns} FROM heads CROSS JOIN LATERAL (
        SELECT * FROM {schema}.jobs WHERE jobs.uid = heads.uid AND {waits_in_line} FOR NO KEY UPDATE SKIP LOCKED
    ) AS jobs
    ORDER BY heads.priority, heads.place, heads.uid
)
{with_keys}

-- name: claim_within_keys
-- The same from a queue that limits its keys, for it alone: those whose key has free slots ($9 may be held, $10 may start
-- between $11 and $12), and the free slots is used up. Nobody is chosen if more than $8 are in the way of the last one, or if
-- those who were looked at ($7) are not enough: that is seen to job by job.
WITH RECURSIVE priorities AS (
{priorities_in_line}
),
line AS MATERIALIZED (
    SELECT line.* FROM priorities CROSS JOIN LATERAL (
        {due_in_line}
        ORDER BY due.place, due.uid LIMIT $7 FOR NO KEY UPDATE SKIP LOCKED
    ) AS line
    WHERE ({first_outlived} $2 ORDER BY late.expires_at LIMIT 1) IS NULL
    LIMIT $7
),
{within_keys}

-- name: claim_types_within_keys
-- The same for jobs of some types ($13).
WITH RECURSIVE lines AS (
    SELECT wanted.type, (
        SELECT first.priority FROM {schema}.jobs AS first
        WHERE first.queue = $1 AND first.type = wanted.type AND {waits_in_line} ORDER BY first.priority LIMIT 1
    ) AS priority
    FROM unnest($13::text[]) AS wanted (type)
    UNION ALL
    SELECT lines.type, (
        SELECT following.priority FROM {schema}.jobs AS following
        WHERE following.queue = $1 AND following.type = lines.type AND following.priority > lines.priority
        AND {waits_in_line} ORDER BY following.priority LIMIT 1
    )
    FROM lines WHERE lines.priority IS NOT NULL
),
heads AS MATERIALIZED (
    SELECT head.uid FROM lines CROSS JOIN LATERAL (
        SELECT due.priority, due.place, due.uid FROM {schema}.jobs AS due
        WHERE due.queue = $1 AND {due_of_type} ORDER BY due.place, due.uid LIMIT $7
    ) AS head
    ORDER BY head.priority, head.place, head.uid LIMIT $7
),
line AS MATERIALIZED (
    SELECT line.* FROM heads CROSS JOIN LATERAL (
        SELECT
        {due_columns}
        FROM {schema}.jobs AS due WHERE due.uid = heads.uid AND {waits_in_line} FOR NO KEY UPDATE SKIP LOCKED
    ) AS line
    WHERE ({first_outlived} $2 ORDER BY late.expires_at LIMIT 1) IS NULL
),
{within_keys}

-- name: within_keys
judged AS (
    SELECT uid, priority, place, line.concurrency_key IS NULL OR (
        ($9::bigint IS NULL OR coalesce(kept.running_count, 0) + nth <= $9)
        AND ($10::bigint IS NULL OR coalesce(kept.started, 0) + nth <= $10)
    ) AS fits
    FROM (
        SELECT uid, priority, place, concurrency_key,
            row_number() OVER (PARTITION BY concurrency_key ORDER BY priority, place, uid) AS nth
        FROM line
    ) AS line
    LEFT JOIN LATERAL (
        SELECT running_count, CASE WHEN window_start BETWEEN $11 AND $12 THEN window_count ELSE 0 END AS started
        FROM {schema}.concurrency_keys WHERE queue = $1 AND key = line.concurrency_key LIMIT 1
    ) AS kept ON true
),
numbered AS MATERIALIZED (
    SELECT uid, fits, count(*) FILTER (WHERE fits) OVER in_order AS fitting,
        count(*) FILTER (WHERE NOT fits) OVER in_order AS passed
    FROM judged WINDOW in_order AS (ORDER BY priority, place, uid ROWS UNBOUNDED PRECEDING)
),
chosen AS MATERIALIZED (
    SELECT * FROM line WHERE uid = ANY (ARRAY(SELECT uid FROM numbered WHERE fits AND fitting <= $3))
    AND ((SELECT max(fitting) FROM numbered) >= $3 OR (SELECT count(*) FROM numbered) < $7)
    AND (SELECT max(passed) FROM numbered WHERE fits AND fitting <= $3) <= $8
),
used AS (
    INSERT INTO {schema}.concurrency_keys AS kept (queue, key, running_count, window_start, window_count, window_ends_at)
    SELECT $1, concurrency_key, count(*), CASE WHEN $10::bigint IS NULL THEN 0 ELSE $11::bigint END,
        CASE WHEN $10::bigint IS NULL THEN 0 ELSE count(*) END, CASE WHEN $10::bigint IS NULL THEN NULL ELSE $12::bigint END
    FROM chosen WHERE concurrency_key IS NOT NULL GROUP BY concurrency_key
    ON CONFLICT (queue, key) DO UPDATE SET
        running_count = kept.running_count + excluded.running_count,
        window_count = CASE WHEN $10::bigint IS NULL THEN kept.window_count
            WHEN kept.window_start BETWEEN $11 AND $12 THEN kept.window_count + excluded.window_count
            ELSE excluded.window_count END,
        window_start = CASE WHEN $10::bigint IS NULL OR kept.window_start BETWEEN $11 AND $12 THEN kept.window_start
            ELSE excluded.window_start END,
        window_ends_at = CASE WHEN $10::bigint IS NULL THEN kept.window_ends_at
            WHEN kept.window_start BETWEEN $11 AND $12 THEN kept.window_start + $12 - $11 ELSE excluded.window_ends_at END
),
{claiming}

-- name: claim_chosen
-- Jobs of one queue that were looked at and locked before.
WITH chosen AS MATERIALIZED (
    SELECT
    {due_columns}
    FROM {schema}.jobs AS due WHERE due.uid = ANY($3::bigint[]) AND due.{eligible}
),
{claiming}

-- name: entries_of_line
coalesce(pg_stat_get_xact_tuples_returned(to_regclass($name${schema}.jobs_claimable$name$)), 0)
+ coalesce(pg_stat_get_xact_tuples_returned(to_regclass($name${schema}.jobs_of_type$name$)), 0)

-- name: entries_read
-- Entries of rows long gone are included. What is noted from one transaction to the next is noted at their ends only, so
-- within one transaction the difference is true. And whether the claim took nobody because one is past their time.
SELECT {entries_of_line}, ({first_outlived} $1 ORDER BY late.expires_at LIMIT 1) IS NOT NULL

-- name: priorities_of_lines
SELECT line.queue, (
    SELECT first.priority FROM {schema}.jobs AS first
    WHERE first.queue = line.queue AND first.{eligible} AND NOT first.blocked ORDER BY first.priority LIMIT 1
) AS priority
FROM unnest($1::text[]) AS line (queue)
UNION ALL
SELECT priorities.queue, (
    SELECT following.priority FROM {schema}.jobs AS following
    WHERE following.queue = priorities.queue AND following.priority > priorities.priority
    AND following.{eligible} AND NOT following.blocked ORDER BY following.priority LIMIT 1
)
FROM priorities WHERE priorities.priority IS NOT NULL

-- name: heads_of_lines
-- The first in line of several queues, to tell how many of each are among the first of all.
WITH RECURSIVE priorities AS (
{priorities_of_lines}
)
SELECT head.queue FROM priorities CROSS JOIN LATERAL (
    SELECT due.queue, due.priority, due.place, due.uid FROM {schema}.jobs AS due
    WHERE due.queue = priorities.queue AND due.priority = priorities.priority AND due.place <= $2
    AND due.eligible_at <= $2 AND due.{eligible} AND NOT due.blocked
    ORDER BY due.place, due.uid LIMIT $3
) AS head
ORDER BY head.priority, head.place, head.uid LIMIT $3

-- name: coming
-- Of one priority of one queue, those whose time is still to come; LIFO jobs, whose place is no time, are left out.
coming.queue = priorities.queue AND coming.priority = priorities.priority AND coming.place > $2
AND coming.{eligible} AND NOT coming.blocked

-- name: lifo_places
-- LIFO jobs stand in their own order, before all times there are.
place <= -1152921504606846976

-- name: count_delayed
-- Those who are blocked had come in time, but a clock may have been set back since.
WITH RECURSIVE priorities AS (
{priorities_of_lines}
)
SELECT coalesce(sum(here.jobs), 0)::bigint FROM (
    SELECT (SELECT count(*) FROM {schema}.jobs AS coming WHERE {coming}) AS jobs FROM priorities
    UNION ALL
    SELECT (
        SELECT count(*) FROM {schema}.jobs AS coming
        WHERE coming.queue = priorities.queue AND coming.priority = priorities.priority
        AND coming.{lifo_places} AND coming.eligible_at > $2 AND coming.{eligible} AND NOT coming.blocked
    ) FROM priorities
    UNION ALL
    SELECT (
        SELECT count(*) FROM {schema}.jobs AS blocked
        WHERE blocked.queue = line.queue AND blocked.blocked
        AND (blocked.place > $2 OR (blocked.{lifo_places} AND blocked.eligible_at > $2))
    ) FROM unnest($1::text[]) AS line (queue)
) AS here

-- name: next_due
WITH RECURSIVE priorities AS (
{priorities_of_lines}
)
SELECT min(first.place) FROM priorities CROSS JOIN LATERAL (
    SELECT coming.place FROM {schema}.jobs AS coming WHERE {coming} ORDER BY coming.place, coming.uid LIMIT 1
) AS first

-- name: carries_others
-- Written so that it can only be answered job by job: else all tags of all jobs would be gathered first.
$3::text[] COLLATE "C" <@ ARRAY(SELECT also.tag FROM {schema}.job_tags AS also WHERE also.uid = first.uid)

-- name: uids_with_tags
SELECT uid FROM {schema}.job_tags AS first
WHERE tag = $1 AND ($2::text IS NULL OR queue = $2)
AND {carries_others}
ORDER BY uid

-- name: tallies_with_tags
SELECT status, count(*), sum(retry_count)::bigint FROM {schema}.job_tags AS first
WHERE tag = $1 AND ($2::text IS NULL OR queue = $2)
AND {carries_others}
GROUP BY status

-- name: tallies_with_tag
SELECT status, count(*), sum(retry_count)::bigint FROM {schema}.job_tags
WHERE tag = $1 AND ($2::text IS NULL OR queue = $2) GROUP BY status

-- name: tallies
SELECT status, sum(jobs)::bigint, sum(retries)::bigint FROM {schema}.queue_counts
WHERE $1::text IS NULL OR queue = $1 GROUP BY status

-- name: counts
SELECT queue, status, sum(jobs)::bigint FROM {schema}.queue_counts GROUP BY queue, status HAVING sum(jobs) > 0

-- name: new_uids
SELECT nextval($name${schema}.job_uids$name$) FROM generate_series(1, $1::bigint)

-- name: inserted_columns
uid, id, queue, type, payload, options, priority, lifo, delay, expires_at, timeout, max_attempts, max_crashes,
idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id, deps_total, created_at, deps_left,
status, run_at, eligible_at, place, announce_at, job_seq, updated_at, tags

-- name: insert_job
-- What a new job cannot have yet is left to the defaults of the table. An id or key in use shows in the number of rows.
INSERT INTO {schema}.jobs ({inserted_columns})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24,
    $25, $26, $27, $28, $29)
ON CONFLICT DO NOTHING

-- name: copy_jobs
COPY {schema}.jobs ({inserted_columns}) FROM STDIN

-- name: remember_queues
INSERT INTO {schema}.queue_names
SELECT fresh.name FROM unnest($1::text[]) AS fresh (name)
WHERE NOT EXISTS (SELECT 1 FROM {schema}.queue_names AS known WHERE known.name = fresh.name)

-- name: save_job
-- The fence: the rows must still be the versions these changes were made from, or nothing is written. The uids are given
-- once more as an array, which keeps the planner at the primary key.
UPDATE {schema}.jobs SET
    deps_left = new.deps_left, status = new.status, run_at = new.run_at, eligible_at = new.eligible_at,
    place = new.place, blocked = new.blocked, executions = new.executions, retry_count = new.retry_count,
    crashes = new.crashes, epoch = new.epoch, job_seq = new.job_seq, updated_at = new.updated_at,
    started_at = new.started_at, finalized_at = new.finalized_at, last_retry_at = new.last_retry_at,
    assigned_at = new.assigned_at, assignee_id = new.assignee_id, lease_owner = new.lease_owner,
    lease_token = new.lease_token, lease_expires_at = new.lease_expires_at, announce_at = new.announce_at,
    cancel_asked_at = new.cancel_asked_at, result = decode(new.result, 'base64'), error_message = new.error_message,
    last_event_xid = {next_told}
FROM json_to_recordset($1::json) AS new (
    deps_left bigint, status text, run_at bigint, eligible_at bigint, place bigint, blocked boolean, executions bigint,
    retry_count bigint, crashes bigint, epoch bigint, job_seq bigint, updated_at bigint, started_at bigint,
    finalized_at bigint, last_retry_at bigint, assigned_at bigint, assignee_id text, lease_owner text,
    lease_token text, lease_expires_at bigint, announce_at bigint, cancel_asked_at bigint, result text,
    error_message text, uid bigint, was_seq bigint
)
WHERE jobs.uid = ANY($2::bigint[]) AND jobs.uid = new.uid AND jobs.job_seq = new.was_seq

-- name: complete_jobs
-- The fence, the end, its event and its count in one statement; and the free slots that keys get back, noted for whoever uses
-- it next, of queues whose settings are held ($7), the others' is seen to afterwards. What does not match is left for a
-- closer look. First the jobs of the whole batch are locked, in the order in which everybody locks,
-- and judged as they are then. What they are compared by stands in no condition on the table itself: it would lead the
-- planner to an index of all that is held, or to a loop within a loop.
WITH locked AS MATERIALIZED (
    SELECT uid, id, epoch, coalesce(lease_token, '') AS token, retry_count, job_seq + 1 AS job_seq, executions,
        {next_told} AS told, queue, type, assignee_id, concurrency_key, tags <> '' AS tagged,
        status = 'RUNNING' AND (lease_expires_at IS NULL OR lease_expires_at > $5) AND lease_owner = assignee_id
        AND position('"remove_on_complete"' IN options) = 0 AS plain
    FROM {schema}.jobs WHERE id = ANY($6::text[]) ORDER BY uid FOR UPDATE
),
done AS MATERIALIZED (
    SELECT locked.*, given.result
    FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bytea[]) AS given (id, epoch, token, result)
    JOIN locked USING (id, epoch, token) WHERE locked.plain
),
completed AS (
    UPDATE {schema}.jobs SET
        status = 'COMPLETED', result = done.result, error_message = '', finalized_at = $5, updated_at = $5,
        job_seq = jobs.job_seq + 1, started_at = coalesce(started_at, $5), lease_owner = NULL, lease_token = NULL,
        lease_expires_at = NULL, last_event_xid = {next_told}
    FROM done WHERE jobs.uid = done.uid
),
told AS (
    INSERT INTO {schema}.job_events (xid, {event_row})
    SELECT told, uid, id, job_seq, queue, type, 'job.completed', 'RUNNING', 'COMPLETED', epoch, executions,
        assignee_id, '', $5::bigint, NULL
    FROM done
),
counted AS (
    INSERT INTO {schema}.queue_counts (queue, status, jobs, retries)
    SELECT queue, 'RUNNING', -count(*), -sum(retry_count) FROM done GROUP BY queue
    UNION ALL
    SELECT queue, 'COMPLETED', count(*), sum(retry_count) FROM done GROUP BY queue
),
left_by_them AS (
    INSERT INTO {schema}.released_slots (queue, keys, jobs)
    SELECT queue, array_agg(concurrency_key), array_agg(jobs) FROM (
        SELECT queue, concurrency_key, count(*) AS jobs FROM done
        WHERE concurrency_key IS NOT NULL AND queue = ANY($7::text[]) GROUP BY queue, concurrency_key
    ) AS given JOIN {schema}.queues ON name = queue AND (per_key IS NOT NULL OR key_rate_count IS NOT NULL)
    GROUP BY queue
)
SELECT uid, id, queue, assignee_id, concurrency_key, tagged FROM done

-- name: announce_jobs
-- Whom somebody is claiming, or another is announcing, is left to them. One statement: the claim must not find many locked.
WITH due AS MATERIALIZED (
    SELECT uid, id, queue, type, job_seq + 1 AS job_seq, epoch, executions, assignee_id, {next_told} AS told
    FROM {schema}.jobs WHERE announce_at <= $1 AND {eligible}
    ORDER BY announce_at, uid LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
),
announced AS (
    UPDATE {schema}.jobs SET
        announce_at = NULL, job_seq = job_seq + 1, updated_at = $1, last_event_xid = {next_told}
    WHERE uid = ANY (ARRAY(SELECT uid FROM due))
),
told AS (
    INSERT INTO {schema}.job_events (xid, {event_row})
    SELECT told, uid, id, job_seq, queue, type, 'job.promoted', NULL, NULL, epoch, executions, assignee_id, '',
        $1::bigint, NULL
    FROM due
)
SELECT id, queue FROM due

-- name: save_lease
UPDATE {schema}.jobs SET lease_expires_at = new.expires_at
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS new (expires_at, uid, epoch)
WHERE jobs.uid = new.uid AND jobs.epoch = new.epoch

-- name: save_progress
UPDATE {schema}.jobs SET progress = $1, job_seq = $2, updated_at = $3, last_event_xid = {next_told} WHERE uid = $4

-- name: save_checkpoint
UPDATE {schema}.jobs SET checkpoint = $1, updated_at = $2 WHERE uid = $3

-- name: save_log_mark
UPDATE {schema}.jobs SET job_seq = $1, last_event_xid = {next_told} WHERE uid = $2

-- name: insert_log
INSERT INTO {schema}.job_logs (uid, number, at, level, message)
SELECT $1::bigint, coalesce(max(number), 0) + 1, $2::bigint, $3::text, $4::text FROM {schema}.job_logs WHERE uid = $1

-- name: logs
SELECT number, at, level, message FROM {schema}.job_logs WHERE uid = $1 AND number > $2 ORDER BY number

-- name: delete_logs
DELETE FROM {schema}.job_logs WHERE uid = ANY($1::bigint[])

-- name: uid_of
SELECT uid FROM {schema}.jobs WHERE id = $1

-- name: delete_job
DELETE FROM {schema}.jobs WHERE uid = ANY($1::bigint[])

-- name: insert_tombstone
INSERT INTO {schema}.tombstones (uid, removed_at, id, queue, type, status, idempotency_key, request)
SELECT uid, $2::bigint, id, queue, type, status, idempotency_key, gone.request
FROM unnest($1::bigint[], $3::text[]) AS gone (uid, request) JOIN {schema}.jobs USING (uid)

-- name: forget_tombstones
DELETE FROM {schema}.tombstones WHERE uid = ANY (ARRAY(
    SELECT uid FROM {schema}.tombstones WHERE removed_at <= $1 ORDER BY removed_at LIMIT $2 FOR UPDATE SKIP LOCKED
))

-- name: insert_tag
INSERT INTO {schema}.job_tags (tag, uid, queue, priority, place, claimable, status, retry_count)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)

-- name: copy_tags
COPY {schema}.job_tags (tag, uid, queue, priority, place, claimable, status, retry_count) FROM STDIN

-- name: save_tag
-- From the jobs themselves, which were written just before.
UPDATE {schema}.job_tags SET
    place = jobs.place, claimable = jobs.{eligible}, status = jobs.status, retry_count = jobs.retry_count
FROM {schema}.jobs
WHERE jobs.uid = ANY($1::bigint[]) AND job_tags.uid = ANY($1::bigint[]) AND jobs.uid = job_tags.uid

-- name: delete_tag
DELETE FROM {schema}.job_tags WHERE uid = ANY($1::bigint[])

-- name: add_to_count
INSERT INTO {schema}.queue_counts (queue, status, jobs, retries)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])

-- name: gather_counts
-- Many rows become a few, and the sums stay what they are. Rows that somebody else is gathering are left to them.
WITH gathered AS (
    DELETE FROM {schema}.queue_counts WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.queue_counts LIMIT $1 FOR UPDATE SKIP LOCKED
    ))
    RETURNING queue, status, jobs, retries
)
INSERT INTO {schema}.queue_counts (queue, status, jobs, retries)
SELECT queue, status, sum(jobs), sum(retries) FROM gathered GROUP BY queue, status
HAVING sum(jobs) <> 0 OR sum(retries) <> 0

-- name: jobs_of_keys
SELECT jobs.queue, jobs.idempotency_key, jobs.id
FROM unnest($1::text[], $2::text[]) AS wanted (queue, key)
JOIN {schema}.jobs ON jobs.queue = wanted.queue AND jobs.idempotency_key = wanted.key

-- name: removed_jobs_of_keys
-- In order of uid, so that of several jobs with one key the last is what remains.
SELECT tombstones.queue, tombstones.idempotency_key, tombstones.id
FROM unnest($1::text[], $2::text[]) AS wanted (queue, key)
JOIN {schema}.tombstones ON tombstones.queue = wanted.queue AND tombstones.idempotency_key = wanted.key
WHERE tombstones.removed_at > $3 ORDER BY tombstones.uid

-- name: jobs_behind_keys
SELECT {jobs_columns} FROM unnest($1::text[], $2::text[]) AS wanted (queue, key)
JOIN {schema}.jobs ON jobs.queue = wanted.queue AND jobs.idempotency_key = wanted.key

-- name: tombstones_behind_keys
SELECT
    tombstones.uid, tombstones.id, tombstones.queue, tombstones.type, tombstones.status, tombstones.idempotency_key,
    tombstones.request
FROM unnest($1::text[], $2::text[]) AS wanted (queue, key)
JOIN {schema}.tombstones ON tombstones.queue = wanted.queue AND tombstones.idempotency_key = wanted.key
WHERE tombstones.removed_at > $3 ORDER BY tombstones.uid

-- name: ids_taken
SELECT id FROM {schema}.jobs WHERE id = ANY($1::text[]) AND uid <> ALL($2::bigint[])

-- name: statuses
SELECT id, status FROM {schema}.jobs WHERE id = ANY($1::text[])

-- name: held_statuses
-- Nobody ends these jobs before the edges to them are stored. Whoever may end a job locks it FOR UPDATE, which waits for
-- this; a renewal or a claim does not.
SELECT id, status FROM {schema}.jobs WHERE id = ANY($1::text[]) ORDER BY uid FOR KEY SHARE

-- name: removed_statuses
-- In order of uid, so that of several jobs with one id the last is what remains.
SELECT id, status FROM {schema}.tombstones WHERE id = ANY($1::text[]) AND removed_at > $2 ORDER BY uid

-- name: put_edge
-- An edge that was there before has been seen by everybody since: it is sure.
INSERT INTO {schema}.job_dependencies (dependent_uid, depends_on, policy, state, position, unsure)
SELECT dependent_uid, depends_on, policy, state, position, unsure
FROM json_to_recordset($1::json) AS new (
    dependent_uid bigint, depends_on text, policy text, state text, position bigint, unsure boolean
)
ON CONFLICT (dependent_uid, depends_on) DO UPDATE SET state = excluded.state, unsure = false

-- name: edge_columns
dependent_uid, depends_on, policy, state, position

-- name: open_edges
SELECT {edge_columns} FROM {schema}.job_dependencies
WHERE depends_on = ANY($1::text[]) AND state <> 'satisfied'
ORDER BY dependent_uid, depends_on

-- name: stopping_edges
-- Written so that it is answered job by job, down the index of open edges, whatever the planner expects.
SELECT edge.dependent_uid, edge.depends_on, edge.policy, edge.state, edge.position
FROM {schema}.jobs JOIN {schema}.job_dependencies AS edge ON edge.depends_on = jobs.id AND edge.state <> 'satisfied'
WHERE jobs.status = 'WAITING_CHILDREN' AND edge.state = 'waiting' AND edge.policy = 'stop'

-- name: edges_that_stop
-- From one who waits to whoever waits for them, and so on.
WITH RECURSIVE onward AS (
    SELECT edge.* FROM unnest($1::bigint[]) AS stopped (uid)
    CROSS JOIN LATERAL ({stopping_edges} AND jobs.uid = stopped.uid OFFSET 0) AS edge
    UNION
    SELECT edge.* FROM onward
    CROSS JOIN LATERAL ({stopping_edges} AND jobs.uid = onward.dependent_uid OFFSET 0) AS edge
)
SELECT {edge_columns} FROM onward ORDER BY dependent_uid, depends_on

-- name: unsure_edges
SELECT {edge_columns} FROM {schema}.job_dependencies
WHERE unsure ORDER BY dependent_uid, depends_on LIMIT $1 FOR UPDATE SKIP LOCKED

-- name: edges_from
SELECT {edge_columns} FROM {schema}.job_dependencies
WHERE dependent_uid = (SELECT uid FROM {schema}.jobs WHERE id = $1) ORDER BY position

-- name: dependencies_of
SELECT dependent_uid, depends_on FROM {schema}.job_dependencies WHERE dependent_uid = ANY($1::bigint[])
ORDER BY dependent_uid, position

-- name: count_down
-- The rows are locked before they are counted down, in the order of their uids, as everywhere.
WITH fewer AS MATERIALIZED (
    SELECT held.uid, given.less FROM unnest($1::bigint[], $2::bigint[]) AS given (uid, less)
    JOIN {schema}.jobs AS held ON held.uid = given.uid ORDER BY held.uid FOR UPDATE OF held
)
UPDATE {schema}.jobs SET deps_left = jobs.deps_left - fewer.less FROM fewer WHERE jobs.uid = fewer.uid
RETURNING jobs.uid, jobs.deps_left

-- name: delete_edges
DELETE FROM {schema}.job_dependencies WHERE dependent_uid = ANY($1::bigint[])

-- name: queue_columns
name, paused, running_limit, per_key, rate_count, rate_per, key_rate_count, key_rate_per, window_start, window_count,
keep_finished, keep_dead, keep_events

-- name: queue
SELECT {queue_columns} FROM {schema}.queues WHERE name = $1

-- name: queues
SELECT {queue_columns} FROM {schema}.queues

-- name: held_settings
-- The settings of queues that are held by now; and what a claim has to know beside them: how many entries of the claim's
-- index this session has read so far, and what time it is after the wait.
SELECT {entries_of_line}, ({now}), NULL, NULL, NULL, NULL, {queue_columns}
FROM unnest($1::text[]) AS known (name) LEFT JOIN {schema}.queues USING (name)

-- name: held_settings_of_all
-- The same of every queue there is.
SELECT {entries_of_line}, ({now}), NULL, NULL, NULL, NULL, {queue_columns}
FROM (SELECT 1) AS always LEFT JOIN ({queues_ever_seen}) AS known ON true LEFT JOIN {schema}.queues USING (name)

-- name: after_slots_are_taken_back
-- The same, after those whose slots is held ($1) have taken back what was left of it: keys of which nothing is held any
-- more, nor has started in a window that is not over, are forgotten. Whoever has the free slots is alone with the keys, so
-- where they stand is where they are. Told are how many jobs hold a place, if that is limited: whatever ended before
-- they were counted ended before the time that stands beside it. Then the keys that have more free slots now, if anybody is
-- blocked; and when the first and the last of all keys wakes. What is left is asked for in order, for a walk down the
-- index: it forgets the dead, of which there are many.
WITH taken AS (
    DELETE FROM {schema}.released_slots WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.released_slots WHERE queue = ANY($1::text[]) ORDER BY queue, number
    )) RETURNING queue, keys, jobs
),
given_back AS MATERIALIZED (
    SELECT given.queue, given.jobs, kept.*, kept.running_count = given.jobs AND kept.window_ends_at IS NULL AS idle
    FROM (
        SELECT taken.queue, given.key, sum(given.jobs)::bigint AS jobs
        FROM taken CROSS JOIN LATERAL unnest(taken.keys, taken.jobs) AS given (key, jobs) GROUP BY taken.queue, given.key
    ) AS given CROSS JOIN LATERAL (
        SELECT ctid AS at, key, running_count, window_start, window_count, window_ends_at FROM {schema}.concurrency_keys
        WHERE queue = given.queue AND key = given.key LIMIT 1
    ) AS kept
),
gone AS (
    DELETE FROM {schema}.concurrency_keys WHERE ctid = ANY (ARRAY(SELECT at FROM given_back WHERE idle))
),
fewer AS (
    UPDATE {schema}.concurrency_keys AS kept SET running_count = kept.running_count - given_back.jobs FROM given_back
    WHERE kept.ctid = given_back.at AND NOT given_back.idle
)
SELECT {entries_of_line}, ({now}),
    CASE WHEN running_limit IS NOT NULL THEN (
        SELECT sum(jobs)::bigint FROM {schema}.queue_counts AS counted
        WHERE counted.queue = known.name AND counted.status IN ('RUNNING', 'CANCELLING')
    ) END,
    CASE WHEN EXISTS (SELECT FROM given_back WHERE given_back.queue = known.name) AND (
        SELECT 1 FROM {schema}.jobs WHERE jobs.queue = known.name AND blocked
        ORDER BY concurrency_key, type, priority, place, uid LIMIT 1
    ) IS NOT NULL THEN (
        SELECT json_agg(json_build_array(key, running_count - jobs, window_start, window_count))
        FROM given_back WHERE given_back.queue = known.name
    ) END,
    (
        SELECT window_ends_at FROM {schema}.concurrency_keys AS kept
        WHERE kept.queue = known.name AND known.name = ANY($1::text[]) AND window_ends_at IS NOT NULL
        ORDER BY window_ends_at LIMIT 1
    ),
    (
        SELECT window_ends_at FROM {schema}.concurrency_keys AS kept
        WHERE kept.queue = known.name AND known.name = ANY($1::text[]) AND window_ends_at IS NOT NULL
        ORDER BY window_ends_at DESC LIMIT 1
    ),
    {queue_columns}

-- name: held_settings_and_slots
{after_slots_are_taken_back}
FROM unnest($2::text[]) AS known (name) LEFT JOIN {schema}.queues USING (name)

-- name: held_settings_and_slots_of_all
{after_slots_are_taken_back}
FROM (SELECT 1) AS always LEFT JOIN ({queues_ever_seen}) AS known ON true LEFT JOIN {schema}.queues USING (name)

-- name: queues_ever_seen
SELECT name FROM {schema}.queue_names UNION SELECT name FROM {schema}.queues ORDER BY 1

-- name: hold_if_free
-- Whoever claims shares the queue with others who do; whoever uses slots that a limit leaves is alone with that, and
-- whoever changes the queue is alone with all of it.
-- This one waits for nobody: what it holds already, somebody may be waiting for.
SELECT bool_and(CASE
    WHEN alone THEN pg_try_advisory_xact_lock(space, lock) ELSE pg_try_advisory_xact_lock_shared(space, lock)
END) FROM unnest($1::integer[], $2::integer[], $3::boolean[]) AS wanted (space, lock, alone)

-- name: alone_at_this
SELECT pg_try_advisory_xact_lock($1::integer, $2::integer)

-- name: counts_of
SELECT status, sum(jobs)::bigint FROM {schema}.queue_counts WHERE queue = $1 GROUP BY status

-- name: put_queue
INSERT INTO {schema}.queues ({queue_columns}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
ON CONFLICT (name) DO UPDATE SET
    paused = excluded.paused, running_limit = excluded.running_limit, per_key = excluded.per_key,
    rate_count = excluded.rate_count, rate_per = excluded.rate_per, key_rate_count = excluded.key_rate_count,
    key_rate_per = excluded.key_rate_per, window_start = excluded.window_start, window_count = excluded.window_count,
    keep_finished = excluded.keep_finished, keep_dead = excluded.keep_dead, keep_events = excluded.keep_events,
    changed = pg_current_xact_id()

-- name: holders
-- The index holds only what runs now; a job that was set running by hand has nobody's name on it.
SELECT assigned_at, id, lease_owner FROM {schema}.jobs
WHERE lease_token IS NOT NULL AND queue = $1 AND ($2::text IS NULL OR concurrency_key = $2)
ORDER BY lease_owner, lease_expires_at, uid LIMIT $3

-- name: ahead_of
SELECT count(*) FROM (
    SELECT 1 FROM {schema}.jobs
    WHERE queue = $1 AND eligible_at <= $2 AND (priority, place, uid) < ($3::bigint, $4::bigint, $5::bigint)
    AND {eligible} AND NOT blocked ORDER BY priority, place, uid LIMIT $6
) AS ahead

-- name: recent_ends
SELECT finalized_at FROM {schema}.jobs
WHERE queue = $1 AND status = 'COMPLETED' AND finalized_at > $2 ORDER BY finalized_at DESC LIMIT $3

-- name: key_states
SELECT queue, key, running_count, window_start, window_count FROM {schema}.concurrency_keys
WHERE queue = $1 AND key = ANY($2::text[])

-- name: keys_waking
-- Those whose time has come, and those further off than any window: the clock was set back since.
SELECT queue, key, running_count, window_start, window_count FROM {schema}.concurrency_keys
WHERE queue = $1 AND window_ends_at <= $2
UNION ALL
SELECT queue, key, running_count, window_start, window_count FROM {schema}.concurrency_keys
WHERE queue = $1 AND window_ends_at > $3

-- name: rated_queues
SELECT {queue_columns} FROM {schema}.queues WHERE rate_count IS NOT NULL OR key_rate_count IS NOT NULL

-- name: next_waking
SELECT window_ends_at FROM {schema}.concurrency_keys WHERE queue = $1 AND window_ends_at > $2 ORDER BY window_ends_at LIMIT 1

-- name: put_key
INSERT INTO {schema}.concurrency_keys (queue, key, running_count, window_start, window_count, window_ends_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
ON CONFLICT (queue, key) DO UPDATE SET
    running_count = excluded.running_count, window_start = excluded.window_start, window_count = excluded.window_count,
    window_ends_at = excluded.window_ends_at

-- name: note_released_slots
INSERT INTO {schema}.released_slots (queue, keys, jobs) VALUES ($1, $2::text[], $3::bigint[])

-- name: released_slots
-- What is not yet taken from what is held of these keys.
SELECT given.key, sum(given.jobs)::bigint
FROM {schema}.released_slots CROSS JOIN LATERAL unnest(keys, jobs) AS given (key, jobs)
WHERE queue = $1 AND given.key = ANY($2::text[]) GROUP BY given.key

-- name: forget_keys
DELETE FROM {schema}.concurrency_keys WHERE queue = $1 AND key = ANY($2::text[])

-- name: delete_keys
DELETE FROM {schema}.concurrency_keys WHERE queue = $1

-- name: windows_of_keys
SELECT key, window_start, window_count FROM {schema}.concurrency_keys WHERE queue = $1 AND window_count > 0

-- name: holding_by_key
SELECT concurrency_key, count(*) FROM {schema}.jobs
WHERE lease_token IS NOT NULL AND queue = $1 AND concurrency_key IS NOT NULL GROUP BY concurrency_key

-- name: block
UPDATE {schema}.jobs SET blocked = true WHERE uid = ANY($1::bigint[])

-- name: unblock_first
-- Whoever is locked just now is waited for: passed over, nobody would think of them again.
-- Of each key the first of every type, as a claim may name any of them: one step in the index finds the next type.
WITH RECURSIVE open_keys AS (
    SELECT given.key, given.free_slots, (
        SELECT blocked.type FROM {schema}.jobs AS blocked
        WHERE blocked.queue = $1 AND blocked.concurrency_key = given.key AND blocked.blocked ORDER BY blocked.type LIMIT 1
    ) AS type FROM unnest($2::text[], $3::bigint[]) AS given (key, free_slots)
    UNION ALL
    SELECT open_keys.key, open_keys.free_slots, (
        SELECT blocked.type FROM {schema}.jobs AS blocked
        WHERE blocked.queue = $1 AND blocked.concurrency_key = open_keys.key AND blocked.type > open_keys.type AND blocked.blocked
        ORDER BY blocked.type LIMIT 1
    ) FROM open_keys WHERE open_keys.type IS NOT NULL
),
stepping AS MATERIALIZED (
    SELECT first.uid FROM open_keys CROSS JOIN LATERAL (
        SELECT blocked.uid FROM {schema}.jobs AS blocked
        WHERE blocked.queue = $1 AND blocked.concurrency_key = open_keys.key AND blocked.type = open_keys.type AND blocked.blocked
        ORDER BY blocked.priority, blocked.place, blocked.uid LIMIT open_keys.free_slots FOR NO KEY UPDATE
    ) AS first
)
UPDATE {schema}.jobs SET blocked = false WHERE uid = ANY (ARRAY(SELECT uid FROM stepping))

-- name: unblock
UPDATE {schema}.jobs SET blocked = false WHERE uid = ANY($1::bigint[])

-- name: any_blocked
-- The first in order is asked for: then no planner thinks that reading the table would find one soon.
SELECT 1 FROM {schema}.jobs WHERE queue = $1 AND blocked ORDER BY concurrency_key, type, priority, place, uid LIMIT 1

-- name: all_blocked
SELECT uid FROM {schema}.jobs WHERE queue = $1 AND blocked ORDER BY uid FOR UPDATE

-- name: event_row
job_uid, job_id, job_seq, queue, type, event, from_status, to_status, epoch, execution, assignee_id, actor,
occurred_at, detail

-- name: insert_event
INSERT INTO {schema}.job_events (xid, {event_row})
SELECT greatest(pg_current_xact_id(), (SELECT last_event_xid FROM {schema}.jobs WHERE uid = job_uid)), {event_row}
FROM ROWS FROM (json_to_recordset($1::json) AS (
    job_uid bigint, job_id text, job_seq bigint, queue text, type text, event text, from_status text, to_status text,
    epoch bigint, execution bigint, assignee_id text, actor text, occurred_at bigint, detail text
)) WITH ORDINALITY ORDER BY ordinality

-- name: copy_events
COPY {schema}.job_events ({event_row}) FROM STDIN

-- name: insert_added_events
-- The first event of every job of the batch, in one statement.
INSERT INTO {schema}.job_events ({event_row})
SELECT uid, id, 1, queue, type, 'job.added', NULL, status, 0, 0, NULL, $3::text, $2::bigint,
    CASE WHEN concurrency_key IS NOT NULL OR schedule_id IS NOT NULL OR parent_id IS NOT NULL THEN json_strip_nulls(
        json_build_object('key', concurrency_key, 'schedule_id', schedule_id, 'parent_id', parent_id)
    )::text END
FROM {schema}.jobs WHERE uid = ANY($1::bigint[]) ORDER BY uid

-- name: horizon
-- The oldest transaction that may still write to this log, and whether it is known to be one of this database. Those
-- known to be of other databases never write here. One that has ended since the snapshot was taken is not known to be
-- anything, and what it wrote is not seen yet: with a new snapshot it is gone.
SELECT coalesce(first.running, pg_snapshot_xmax(pg_current_snapshot()))::text::bigint, first.known IS NOT false
FROM (SELECT 1) AS always LEFT JOIN (
    SELECT running, locks.pid IS NOT NULL AS known
    FROM pg_snapshot_xip(pg_current_snapshot()) AS running
    LEFT JOIN pg_locks AS locks
        ON locks.transactionid = running::xid AND locks.locktype = 'transactionid' AND locks.mode = 'ExclusiveLock'
    LEFT JOIN pg_stat_activity AS activity USING (pid)
    WHERE activity.datname IS NULL OR activity.datname = current_database()
    ORDER BY running LIMIT 1
) AS first ON true

-- name: event_columns
-- The first one is called xid as well: whoever orders by the column has to say whose.
xid::text::bigint, n, {event_row}

-- name: events
SELECT {event_columns} FROM {schema}.job_events
WHERE (xid, n) > ($1::xid8, $2) AND xid < $3::xid8 ORDER BY job_events.xid, job_events.n LIMIT $4

-- name: events_of_queue
SELECT {event_columns} FROM {schema}.job_events
WHERE (xid, n) > ($1::xid8, $2) AND xid < $3::xid8 AND queue = $4 ORDER BY job_events.xid, job_events.n LIMIT $5

-- name: events_of_job
SELECT {event_columns} FROM {schema}.job_events
WHERE (xid, n) > ($1::xid8, $2) AND xid < $3::xid8 AND job_id = $4 AND ($5::text IS NULL OR queue = $5)
ORDER BY job_events.xid, job_events.n LIMIT $6

-- name: newest_time
SELECT greatest(
    (SELECT occurred_at FROM {schema}.job_events ORDER BY job_events.xid DESC, job_events.n DESC LIMIT 1),
    (SELECT max(seen_at) FROM {schema}.workers)
)

-- name: last_event
SELECT xid::text::bigint, n FROM {schema}.job_events WHERE xid < $1::xid8 ORDER BY job_events.xid DESC, job_events.n DESC LIMIT 1

-- name: event_after
SELECT xid::text::bigint, n FROM {schema}.job_events
WHERE (xid, n) > ($1::xid8, $2) AND (xid, n) <= ($3::xid8, $4) ORDER BY job_events.xid, job_events.n LIMIT 1 OFFSET $5

-- name: count_events
SELECT count(*) FROM {schema}.job_events WHERE (xid, n) > ($1::xid8, $2) AND (xid, n) <= ($3::xid8, $4)

-- name: bulk_jobs
-- What is read in bulk is put together around these: columns before, conditions behind.
FROM {schema}.jobs

-- name: bulk_job_events
FROM {schema}.job_events

-- name: bulk_job_logs
FROM {schema}.job_logs JOIN {schema}.jobs USING (uid)

-- name: staged_run
SELECT offered, inserted FROM {schema}.staged_runs WHERE run = $1 AND offered IS NOT NULL

-- name: touch_staged_run
INSERT INTO {schema}.staged_runs AS known (run, touched_at) VALUES ($1, $2)
ON CONFLICT (run) DO UPDATE SET touched_at = greatest(known.touched_at, excluded.touched_at)

-- name: stage_job
INSERT INTO {schema}.staged_jobs (run, part, job) VALUES ($1, $2, $3)

-- name: copy_staged_jobs
COPY {schema}.staged_jobs (run, part, job) FROM STDIN

-- name: insert_plain_jobs
-- Jobs that were checked when they were laid aside, as lists in the order of `_PLAIN`, and that nothing has to be looked
-- up for; with their first events, in one statement.
WITH plain AS MATERIALIZED (
    DELETE FROM {schema}.staged_jobs WHERE run = $1 AND part = ANY($2::text[]) AND starts_with(job, '[')
    RETURNING number, job
),
numbered AS MATERIALIZED (
    SELECT nextval($name${schema}.job_uids$name$) AS uid, body
    FROM (SELECT job::jsonb AS body FROM plain ORDER BY number) AS ordered
),
fresh AS (
    INSERT INTO {schema}.jobs (
        uid, id, type, queue, payload, priority, max_attempts, max_crashes, timeout, expires_at, options, lifo, tags,
        on_dependency_failure, deps_total, deps_left, status, created_at, updated_at, eligible_at, place, job_seq
    )
    SELECT uid, body->>0, body->>1, body->>2, convert_to(body->>3, 'UTF8'), (body->>4)::bigint, (body->>5)::bigint,
        (body->>6)::bigint, (body->>7)::bigint, (body->>8)::bigint, '{}', false, '', 'wait', 0, 0, 'INITIAL_PENDING',
        $3::bigint, $3::bigint, $3::bigint, $3::bigint, 1
    FROM numbered ORDER BY uid
),
told AS (
    INSERT INTO {schema}.job_events ({event_row})
    SELECT uid, body->>0, 1, body->>2, body->>1, 'job.added', NULL, 'INITIAL_PENDING', 0, 0, NULL, '', $3::bigint, NULL
    FROM numbered ORDER BY uid
)
SELECT body->>2, count(*)::bigint FROM numbered GROUP BY 1

-- name: staged_jobs
SELECT job FROM {schema}.staged_jobs WHERE run = $1 AND part = ANY($2::text[]) ORDER BY number

-- name: finish_staged_run
INSERT INTO {schema}.staged_runs (run, touched_at, offered, inserted) VALUES ($1, $2, $3, $4)
ON CONFLICT (run) DO UPDATE SET
    touched_at = excluded.touched_at, offered = excluded.offered, inserted = excluded.inserted

-- name: clear_staged_jobs
DELETE FROM {schema}.staged_jobs WHERE run = $1

-- name: drop_staged_run
DELETE FROM {schema}.staged_runs WHERE run = $1

-- name: silent_runs
SELECT run FROM {schema}.staged_runs WHERE touched_at < CASE WHEN offered IS NULL THEN $1::bigint ELSE $2::bigint END

-- name: token_columns
id, name, hash, scopes, queues, created_at, expires_at, revoked_at, last_used_at

-- name: tokens
SELECT {token_columns} FROM {schema}.api_tokens

-- name: token_by_id
SELECT {token_columns} FROM {schema}.api_tokens WHERE id = $1

-- name: insert_token
INSERT INTO {schema}.api_tokens (id, name, hash, scopes, queues, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)

-- name: revoke_token
UPDATE {schema}.api_tokens SET revoked_at = coalesce(revoked_at, $2::bigint) WHERE id = $1

-- name: touch_token
UPDATE {schema}.api_tokens SET last_used_at = $2 WHERE id = $1

-- name: forget_tokens
DELETE FROM {schema}.api_tokens WHERE revoked_at <= $1::bigint OR expires_at <= $1::bigint

-- name: oldest_events
SELECT xid::text::bigint, n, queue, occurred_at FROM {schema}.job_events
WHERE (xid, n) > ($1::xid8, $2) AND xid < $3::xid8 ORDER BY job_events.xid, job_events.n LIMIT $4

-- name: delete_event
DELETE FROM {schema}.job_events WHERE xid = $1::xid8 AND n = $2

-- name: pruned
SELECT deleted_xid::text::bigint, deleted_n, seen_xid::text::bigint, seen_n
FROM {schema}.pruned_events WHERE queue = $1

-- name: pruned_anywhere
SELECT deleted_xid::text::bigint, deleted_n FROM {schema}.pruned_events
ORDER BY pruned_events.deleted_xid DESC, pruned_events.deleted_n DESC LIMIT 1

-- name: put_pruned
INSERT INTO {schema}.pruned_events (queue, deleted_xid, deleted_n, seen_xid, seen_n)
VALUES ($1, $2::xid8, $3, $4::xid8, $5)
ON CONFLICT (queue) DO UPDATE SET
    deleted_xid = excluded.deleted_xid, deleted_n = excluded.deleted_n, seen_xid = excluded.seen_xid,
    seen_n = excluded.seen_n

-- name: changes_since
-- Whether anything was committed since a snapshot that somebody who waits would want to know of; and a new snapshot.
-- Of the events only those of transactions are visited that the snapshot knew to be open, or did not know: however old
-- the oldest of them is. And from the newest down, or a planner who expects many would read the log from its start.
SELECT
    pg_current_snapshot()::text,
    (
        SELECT true FROM {schema}.job_events WHERE xid >= pg_snapshot_xmax($1::pg_snapshot) ORDER BY xid DESC LIMIT 1
    ) IS NOT NULL
    OR EXISTS (
        SELECT 1 FROM {schema}.job_events WHERE xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::pg_snapshot)))
    )
    OR EXISTS (SELECT 1 FROM {schema}.queues WHERE NOT pg_visible_in_snapshot(changed, $1::pg_snapshot))
    OR EXISTS (SELECT 1 FROM {schema}.schedules WHERE NOT pg_visible_in_snapshot(changed, $1::pg_snapshot))

-- name: snapshot
SELECT pg_current_snapshot()::text

-- name: schedule_columns
next_run_at, last_run_at, last_job_id, run_count, updated_at, body

-- name: schedule_fields
id, next_run_at, last_run_at, last_job_id, run_count, updated_at, paused, body

-- name: schedule_rows
SELECT * FROM unnest(
    $1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::boolean[], $8::text[]
) AS given ({schedule_fields})

-- name: move_schedules
-- The ids are given once more as an array, which keeps the planner at the primary key.
UPDATE {schema}.schedules AS kept
SET next_run_at = given.next_run_at, last_run_at = given.last_run_at, last_job_id = given.last_job_id,
    run_count = given.run_count, updated_at = given.updated_at, changed = pg_current_xact_id()
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[])
AS given (id, next_run_at, last_run_at, last_job_id, run_count, updated_at)
WHERE kept.id = given.id AND kept.id = ANY($1::text[])

-- name: put_schedules
UPDATE {schema}.schedules AS kept
SET paused = given.paused, next_run_at = given.next_run_at, last_run_at = given.last_run_at,
    last_job_id = given.last_job_id, run_count = given.run_count, updated_at = given.updated_at, body = given.body,
    changed = pg_current_xact_id()
FROM ({schedule_rows}) AS given WHERE kept.id = given.id

-- name: insert_schedules
-- One that somebody else has put meanwhile shows in the number of rows.
INSERT INTO {schema}.schedules ({schedule_fields}) {schedule_rows} ON CONFLICT (id) DO NOTHING

-- name: schedules
SELECT {schedule_columns} FROM {schema}.schedules ORDER BY id

-- name: schedules_by_ids
SELECT {schedule_columns} FROM {schema}.schedules WHERE id = ANY($1::text[]) ORDER BY id

-- name: held_schedules
{schedules_by_ids} FOR UPDATE

-- name: schedules_due
SELECT {schedule_columns} FROM {schema}.schedules
WHERE next_run_at > $1 AND next_run_at <= $2 AND NOT paused ORDER BY next_run_at, id LIMIT $3 FOR UPDATE SKIP LOCKED

-- name: schedules_ahead
-- All of them are read for it, so it is not asked often.
SELECT {schedule_columns} FROM {schema}.schedules
WHERE updated_at > $1 AND NOT paused ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: next_firing
SELECT min(next_run_at) FROM {schema}.schedules WHERE next_run_at IS NOT NULL AND NOT paused

-- name: delete_schedule
DELETE FROM {schema}.schedules WHERE id = $1

-- name: put_worker
INSERT INTO {schema}.workers (id, seen_at, body) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, body = excluded.body

-- name: forget_workers
DELETE FROM {schema}.workers WHERE id IN (
    SELECT id FROM {schema}.workers WHERE seen_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED
)

-- name: workers
SELECT body FROM {schema}.workers ORDER BY id

-- name: meta
SELECT log, pg_snapshot_xmax(pg_current_snapshot())::text::bigint FROM {schema}.meta

-- name: hint
-- On its own, after the commit: nothing is lost with it, so it need not wait for the disk.
SELECT pg_notify($1, name), set_config('synchronous_commit', 'off', true) FROM unnest($2::text[]) AS name

-- name: notify
SELECT pg_notify($1, name) FROM unnest($2::text[]) AS name

-- name: jobs_where
SELECT {job_columns} FROM {schema}.jobs WHERE

-- name: carries_tag
uid IN (SELECT uid FROM {schema}.job_tags WHERE tag = {})

-- name: weight
-- What a row's sums are multiplied by, so that two rows with each other's values do not add up to the same.
(uid % 997 + 1)

-- name: status_number
-- A number for each status that every dialect makes alike; it is the length and the first letter that tell them apart.
(length(status) * 128 + ascii(status))

-- name: span_of_jobs
SELECT min(uid), max(uid) FROM {schema}.jobs

-- name: span_of_job_dependencies
SELECT min(dependent_uid), max(dependent_uid) FROM {schema}.job_dependencies

-- name: span_of_job_logs
SELECT min(uid), max(uid) FROM {schema}.job_logs

-- name: span_of_tombstones
SELECT min(uid), max(uid) FROM {schema}.tombstones

-- name: moved_xid
-- Events that were moved stand before all that are written here, as those of the lowest transaction there can be.
'3'::xid8

-- name: span_of_job_events
SELECT min(n), max(n) FROM {schema}.job_events WHERE xid = {moved_xid}

-- name: digest_of_jobs
-- Whatever happens to a job changes one of these: its version, or where no event is written for it, one of the others.
SELECT
    count(*), sum({weight} * job_seq)::bigint, sum({weight} * {status_number})::bigint,
    sum({weight} * retry_count)::bigint, sum({weight} * (updated_at % 1000003))::bigint,
    sum({weight} * (coalesce(lease_expires_at, 0) % 1000003))::bigint, sum({weight} * blocked::integer)::bigint,
    sum({weight} * deps_left)::bigint, sum({weight} * (place % 1000003))::bigint,
    sum(length(payload)), sum(length(result)), sum(length(checkpoint))
FROM {schema}.jobs WHERE uid >= $1 AND uid < $2

-- name: digest_of_job_dependencies
SELECT
    count(*), sum((dependent_uid % 997 + 1) * (position + 1))::bigint,
    sum((dependent_uid % 997 + 1) * length(state))::bigint
FROM {schema}.job_dependencies WHERE dependent_uid >= $1 AND dependent_uid < $2

-- name: digest_of_job_logs
SELECT count(*), sum({weight} * number)::bigint, sum({weight} * (at % 1000003))::bigint
FROM {schema}.job_logs WHERE uid >= $1 AND uid < $2

-- name: digest_of_tombstones
SELECT
    count(*), sum({weight} * (removed_at % 1000003))::bigint, sum({weight} * {status_number})::bigint,
    sum({weight} * length(request))::bigint
FROM {schema}.tombstones WHERE uid >= $1 AND uid < $2

-- name: digest_of_job_events
SELECT count(*), sum((n % 997 + 1) * job_seq)::bigint, sum((n % 997 + 1) * (occurred_at % 1000003))::bigint
FROM {schema}.job_events WHERE xid = {moved_xid} AND n >= $1 AND n < $2

-- name: digest_of_job_tags
SELECT
    sum({weight} * length(tag))::bigint, sum({weight} * {status_number})::bigint, sum({weight} * retry_count)::bigint,
    sum({weight} * claimable::integer)::bigint, sum({weight} * (place % 1000003))::bigint,
    sum({weight} * (priority % 1000003))::bigint
FROM {schema}.job_tags

-- name: row_counts
SELECT
    (SELECT count(*) FROM {schema}.jobs), (SELECT count(*) FROM {schema}.job_dependencies),
    (SELECT count(*) FROM {schema}.job_logs), (SELECT count(*) FROM {schema}.tombstones),
    (SELECT count(*) FROM {schema}.job_events), (SELECT count(*) FROM {schema}.job_tags),
    (SELECT count(*) FROM {schema}.queues), (SELECT count(*) FROM {schema}.concurrency_keys),
    (SELECT count(*) FROM {schema}.schedules), (SELECT count(*) FROM {schema}.api_tokens)

-- name: recount
SELECT queue, status, count(*), sum(retry_count)::bigint FROM {schema}.jobs GROUP BY queue, status

-- name: any_belongings
SELECT EXISTS (SELECT 1 FROM {schema}.jobs) OR EXISTS (SELECT 1 FROM {schema}.tombstones)
    OR EXISTS (SELECT 1 FROM {schema}.job_events) OR EXISTS (SELECT 1 FROM {schema}.queues)
    OR EXISTS (SELECT 1 FROM {schema}.schedules) OR EXISTS (SELECT 1 FROM {schema}.api_tokens)

-- name: copy_state
-- Locked: of two copies into one schema, the one that began last goes on, and the other fails.
SELECT copy_state FROM {schema}.meta FOR UPDATE

-- name: put_moving
UPDATE {schema}.meta SET copy_state = $1

-- name: allow_copy
-- For this transaction only; nor does it matter how long a statement takes.
SELECT set_config('longshore.copying', 'on', true), set_config('statement_timeout', '0', true)

-- name: lock_schema
-- A process that opened the schema before the copy began would take jobs out of it half-way: whoever writes to it is
-- told to wait, whatever connection they have.
CREATE OR REPLACE FUNCTION {schema}.refuse_while_moving() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('longshore.copying', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'longshore migrate-data into this schema was not finished; run it again'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER copy_guard BEFORE INSERT OR UPDATE OR DELETE ON {schema}.jobs
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_while_moving();
CREATE TRIGGER copy_guard BEFORE INSERT ON {schema}.job_events
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_while_moving();
CREATE TRIGGER copy_guard BEFORE INSERT OR UPDATE OR DELETE ON {schema}.queues
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_while_moving();
CREATE TRIGGER copy_guard BEFORE INSERT OR UPDATE OR DELETE ON {schema}.schedules
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_while_moving()

-- name: unlock_schema
DROP FUNCTION {schema}.refuse_while_moving() CASCADE

-- name: clear_jobs
DELETE FROM {schema}.jobs WHERE uid >= $1 AND uid < $2

-- name: clear_job_tags
DELETE FROM {schema}.job_tags WHERE uid >= $1 AND uid < $2

-- name: clear_job_dependencies
DELETE FROM {schema}.job_dependencies WHERE dependent_uid >= $1 AND dependent_uid < $2

-- name: clear_job_logs
DELETE FROM {schema}.job_logs WHERE uid >= $1 AND uid < $2

-- name: clear_tombstones
DELETE FROM {schema}.tombstones WHERE uid >= $1 AND uid < $2

-- name: clear_job_events
DELETE FROM {schema}.job_events WHERE xid = {moved_xid} AND n >= $1 AND n < $2

-- name: fill_jobs
COPY {schema}.jobs ({job_columns}) FROM STDIN

-- name: fill_job_tags
INSERT INTO {schema}.job_tags (tag, uid, queue, priority, place, claimable, status, retry_count)
SELECT carried.tag, uid, queue, priority, place, {eligible}, status, retry_count
FROM {schema}.jobs CROSS JOIN LATERAL json_array_elements_text(nullif(tags, '')::json) AS carried (tag)
WHERE uid >= $1 AND uid < $2

-- name: fill_job_dependencies
COPY {schema}.job_dependencies ({edge_columns}, unsure) FROM STDIN

-- name: fill_job_logs
COPY {schema}.job_logs (uid, number, at, level, message) FROM STDIN

-- name: fill_tombstones
COPY {schema}.tombstones (uid, id, queue, type, status, idempotency_key, removed_at, request) FROM STDIN

-- name: fill_job_events
COPY {schema}.job_events (xid, n, {event_row}) FROM STDIN

-- name: fill_queues
COPY {schema}.queues ({queue_columns}) FROM STDIN

-- name: fill_concurrency_keys
COPY {schema}.concurrency_keys (queue, key, running_count, window_start, window_count, window_ends_at) FROM STDIN

-- name: fill_schedules
COPY {schema}.schedules ({schedule_fields}) FROM STDIN

-- name: fill_api_tokens
COPY {schema}.api_tokens ({token_columns}) FROM STDIN

-- name: fill_counts
INSERT INTO {schema}.queue_counts (queue, status, jobs, retries) {recount}

-- name: go_on_from
SELECT
    setval($name${schema}.job_uids$name$, $1::bigint, false),
    setval(pg_get_serial_sequence($name${schema}.job_events$name$, 'n'), $2::bigint, false)

-- name: learn_sizes
-- Or the planner would take the tables for empty until the next ANALYZE.
ANALYZE {schema}.jobs, {schema}.job_tags, {schema}.job_events, {schema}.job_dependencies, {schema}.job_logs

-- name: blocks_of_events
-- Read once at the start: the transactions of each block of events, by which the primary key finds its rows.
SELECT n / $1, min(n), max(n), min(xid::text::bigint), max(xid::text::bigint) FROM {schema}.job_events GROUP BY 1

-- name: in_block_of_events
n >= $1 AND n < $2 AND xid >= $3::text::xid8 AND xid <= $4::text::xid8

-- name: digest_of_block_of_events
SELECT count(*), sum((n % 997 + 1) * job_seq)::bigint, sum((n % 997 + 1) * (occurred_at % 1000003))::bigint
FROM {schema}.job_events WHERE {in_block_of_events}

-- name: rows_of_jobs
SELECT {job_columns} FROM {schema}.jobs WHERE uid >= $1 AND uid < $2 ORDER BY uid

-- name: rows_of_job_dependencies
-- Every edge is decided: a move with undecided edges is refused.
SELECT {edge_columns}, 0 FROM {schema}.job_dependencies WHERE dependent_uid >= $1 AND dependent_uid < $2

-- name: rows_of_job_logs
SELECT uid, number, at, level, message FROM {schema}.job_logs WHERE uid >= $1 AND uid < $2

-- name: rows_of_tombstones
SELECT uid, id, queue, type, status, idempotency_key, removed_at, request FROM {schema}.tombstones
WHERE uid >= $1 AND uid < $2

-- name: rows_of_job_events
SELECT n, {event_row} FROM {schema}.job_events WHERE {in_block_of_events} ORDER BY n

-- name: rows_of_concurrency_keys
SELECT queue, key, running_count, window_start, window_count, window_ends_at FROM {schema}.concurrency_keys

-- name: rows_of_schedules
SELECT {schedule_fields} FROM {schema}.schedules

-- name: undecided_edges
SELECT count(*) FROM {schema}.job_dependencies WHERE unsure

-- name: leaving
-- The log's name, the next numbers, and the snapshot that is moved.
SELECT log, uids.last_value + uids.is_called::integer, events.last_value + events.is_called::integer,
    pg_current_snapshot()::text
FROM {schema}.meta, {schema}.job_uids AS uids, {schema}.job_events_n_seq AS events

-- name: events_outside
SELECT count(*) FROM {schema}.job_events
WHERE xid >= pg_snapshot_xmin($1::pg_snapshot) AND NOT pg_visible_in_snapshot(xid, $1::pg_snapshot)

-- name: workers_heard_since
SELECT id, seen_at FROM {schema}.workers
WHERE seen_at > $1 AND body::json ->> 'state' IS DISTINCT FROM 'stopped' ORDER BY id

-- name: leases_in_force
SELECT lease_owner, count(*), max(coalesce(lease_expires_at, 9223372036854775807)) FROM {schema}.jobs
WHERE lease_token IS NOT NULL AND (lease_expires_at IS NULL OR lease_expires_at > $1) GROUP BY lease_owner

-- name: durability
SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') ORDER BY name

-- name: size_of_schema
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'

-- name: dead_rows
SELECT relname::text, n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = $1 ORDER BY relname

-- name: same_log
SELECT coalesce(pg_current_xact_id_if_assigned()::text::bigint, 0), log = $1 AND tableoid::bigint = $2 FROM {schema}.meta

-- name: restored_lately
SELECT (extract(epoch FROM restored_at) * 1000000)::bigint FROM {schema}.meta
WHERE restored_at > clock_timestamp() - interval '7 days'

-- name: oldest_snapshot
-- Rows stay for as long as anybody may still see them: sessions of this database, and transactions that were prepared.
SELECT (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint, who
FROM (
    SELECT xact_start AS since,
        nullif(concat_ws(' ', 'session', pid::text, nullif(application_name, ''), nullif(usename, ''), state), '') AS who
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL AND xact_start IS NOT NULL
    UNION ALL
    SELECT prepared, 'the prepared transaction ' || gid FROM pg_prepared_xacts WHERE database = current_database()
) AS held
ORDER BY since LIMIT 1
