-- Statements that only read: jobs, counts, events, queues and the reasons why a job waits.

-- fragment: job_columns
{common_job_columns}

-- name: jobs_seen(ids)
SELECT {job_columns} FROM {schema}.jobs WHERE id = ANY(:ids::text[])

-- fragment: all_jobs
-- A search adds its conditions and its order.
SELECT {job_columns} FROM {schema}.jobs

-- fragment: carries_tag
uid IN (SELECT uid FROM {schema}.job_tags WHERE tag = {})

-- name: dependencies_of(uids)
SELECT dependent_uid, depends_on FROM {schema}.job_dependencies WHERE dependent_uid = ANY(:uids::bigint[])
ORDER BY dependent_uid, position

-- fragment: has_tags
-- As an array, so that the planner looks up the other tags job by job and does not collect all tags first.
tag = :tag AND (:queue::text IS NULL OR queue = :queue)
AND :other_tags::text[] COLLATE "C" <@ ARRAY(SELECT tag FROM {schema}.job_tags WHERE uid = tagged.uid)

-- name: uids_with_tags(tag, queue, other_tags)
SELECT uid FROM {schema}.job_tags AS tagged WHERE {has_tags} ORDER BY uid

-- name: tallies_with_tags(tag, queue, other_tags)
SELECT status, count(*), sum(retry_count)::bigint FROM {schema}.job_tags AS tagged WHERE {has_tags} GROUP BY status

-- name: counts()
SELECT queue, status, sum(jobs)::bigint FROM {schema}.queue_counts GROUP BY queue, status HAVING sum(jobs) > 0

-- name: counts_of(queue)
SELECT status, sum(jobs)::bigint FROM {schema}.queue_counts WHERE queue = :queue GROUP BY status

-- fragment: later_in_level
-- LIFO jobs are left out: their sort_key is not a time.
queue = levels.queue AND priority = levels.priority AND sort_key > :now AND {eligible} AND NOT blocked

-- name: count_delayed(queues, now)
-- Blocked jobs were due when they were blocked, but the clock may have been set back.
WITH RECURSIVE wanted AS (SELECT queue FROM unnest(:queues::text[]) AS given (queue)), {levels}
SELECT coalesce(sum(delayed.jobs), 0)::bigint FROM (
    SELECT (SELECT count(*) FROM {schema}.jobs WHERE {later_in_level}) AS jobs FROM levels
    UNION ALL
    SELECT (
        SELECT count(*) FROM {schema}.jobs
        WHERE queue = levels.queue AND priority = levels.priority AND {is_lifo} AND eligible_at > :now
        AND {eligible} AND NOT blocked
    ) FROM levels
    UNION ALL
    SELECT (
        SELECT count(*) FROM {schema}.jobs WHERE queue = wanted.queue AND blocked
        AND (sort_key > :now OR ({is_lifo} AND eligible_at > :now))
    ) FROM wanted
) AS delayed

-- name: next_due(queues, now)
WITH RECURSIVE wanted AS (SELECT queue FROM unnest(:queues::text[]) AS given (queue)), {levels}
SELECT min(first.sort_key) FROM levels CROSS JOIN LATERAL (
    SELECT sort_key FROM {schema}.jobs WHERE {later_in_level} ORDER BY sort_key, uid LIMIT 1
) AS first

-- fragment: all_queues
SELECT name FROM {schema}.queue_names UNION SELECT name FROM {schema}.queues

-- name: known_queues()
{all_queues} ORDER BY 1

-- name: released_slots(queue, keys)
SELECT given.key, sum(given.jobs)::bigint
FROM {schema}.released_slots CROSS JOIN LATERAL unnest(keys, jobs) AS given (key, jobs)
WHERE queue = :queue AND given.key = ANY(:keys::text[]) GROUP BY given.key

-- name: holders(queue, key, limit)
SELECT assigned_at, id, lease_owner FROM {schema}.jobs
WHERE lease_token IS NOT NULL AND queue = :queue AND (:key::text IS NULL OR concurrency_key = :key)
ORDER BY lease_owner, lease_expires_at, uid LIMIT :limit

-- name: ahead_of(queue, now, priority, sort_key, uid, limit)
SELECT count(*) FROM (
    SELECT 1 FROM {schema}.jobs WHERE queue = :queue AND eligible_at <= :now
    AND (priority, sort_key, uid) < (:priority::bigint, :sort_key::bigint, :uid::bigint)
    AND {eligible} AND NOT blocked ORDER BY priority, sort_key, uid LIMIT :limit
) AS ahead

-- name: recent_ends(queue, after, limit)
SELECT finalized_at FROM {schema}.jobs
WHERE queue = :queue AND status = {complete_target} AND finalized_at > :after ORDER BY finalized_at DESC LIMIT :limit

-- name: meta()
SELECT log, pg_snapshot_xmax(pg_current_snapshot())::text::bigint FROM {schema}.meta

-- name: horizon()
-- The oldest transaction that may still write to the log, and whether it is known to be of this database. Transactions
-- of other databases never write here. One that ended after the snapshot was taken is unknown, and its events are not
-- visible yet: the caller asks again.
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

-- fragment: logged_columns
-- The first column is a number, and also named xid: ORDER BY must name the table.
xid::text::bigint, n, {event_columns}

-- fragment: events_between
(xid, n) > (:after_xid::xid8, :after_n) AND xid < :end_xid::xid8

-- name: events(after_xid, after_n, end_xid, limit)
SELECT {logged_columns} FROM {schema}.job_events
WHERE {events_between} ORDER BY job_events.xid, job_events.n LIMIT :limit

-- name: events_of_queue(after_xid, after_n, end_xid, queue, limit)
SELECT {logged_columns} FROM {schema}.job_events
WHERE {events_between} AND queue = :queue ORDER BY job_events.xid, job_events.n LIMIT :limit

-- name: events_of_job(after_xid, after_n, end_xid, job_id, queue, limit)
SELECT {logged_columns} FROM {schema}.job_events
WHERE {events_between} AND job_id = :job_id AND (:queue::text IS NULL OR queue = :queue)
ORDER BY job_events.xid, job_events.n LIMIT :limit

-- name: last_event(end_xid)
SELECT xid::text::bigint, n FROM {schema}.job_events WHERE xid < :end_xid::xid8
ORDER BY job_events.xid DESC, job_events.n DESC LIMIT 1

-- name: newest_time()
SELECT greatest(
    (SELECT occurred_at FROM {schema}.job_events ORDER BY job_events.xid DESC, job_events.n DESC LIMIT 1),
    (SELECT max(seen_at) FROM {schema}.workers)
)

-- name: pruned_anywhere()
SELECT deleted_xid::text::bigint, deleted_n FROM {schema}.pruned_events
ORDER BY pruned_events.deleted_xid DESC, pruned_events.deleted_n DESC LIMIT 1
