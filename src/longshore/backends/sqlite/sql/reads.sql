-- name: job_by_uid(uid)
SELECT {job_columns} FROM jobs WHERE uid = :uid

-- name: jobs_seen(ids)
SELECT {job_columns} FROM jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: uids_with_tags(tag, queue, other_tags)
SELECT uid FROM job_tags AS tagged WHERE tag = :tag AND (:queue IS NULL OR queue = :queue) AND {has_other_tags}
ORDER BY uid

-- name: dependencies_of(uids)
SELECT dependent_uid, depends_on FROM job_dependencies WHERE dependent_uid IN (SELECT value FROM json_each(:uids))
ORDER BY dependent_uid, position

-- name: meta()
SELECT log, next_uid, next_event FROM meta

-- name: events(after, limit)
SELECT n, {event_columns} FROM job_events WHERE n > :after ORDER BY n LIMIT :limit

-- name: events_of_queue(after, queue, limit)
SELECT n, {event_columns} FROM job_events WHERE n > :after AND queue = :queue ORDER BY n LIMIT :limit

-- name: events_of_job(after, job_id, queue, limit)
SELECT n, {event_columns} FROM job_events INDEXED BY job_events_by_job
WHERE n > :after AND job_id = :job_id AND (:queue IS NULL OR queue = :queue) ORDER BY n LIMIT :limit

-- name: counts()
SELECT queue, status, jobs FROM queue_counts WHERE jobs > 0

-- name: counts_of(queue)
SELECT status, jobs FROM queue_counts WHERE queue = :queue

-- name: tallies_with_tags(tag, queue, other_tags)
SELECT status, count(*), sum(retry_count) FROM job_tags AS tagged
WHERE tag = :tag AND (:queue IS NULL OR queue = :queue) AND {has_other_tags} GROUP BY status

-- name: key_states(queue, keys)
SELECT {key_state_columns} FROM concurrency_keys WHERE queue = :queue AND key IN (SELECT value FROM json_each(:keys))

-- name: holders(queue, key, limit)
-- The index jobs_held has running jobs only. A job whose status was set to running by hand has no owner.
SELECT assigned_at, id, lease_owner FROM jobs INDEXED BY jobs_held
WHERE lease_token IS NOT NULL AND queue = :queue AND (:key IS NULL OR concurrency_key = :key) LIMIT :limit

-- name: ahead_of(queue, now, priority, sort_key, uid, limit)
SELECT count(*) FROM (
    SELECT 1 FROM jobs INDEXED BY jobs_claimable
    WHERE queue = :queue AND eligible_at <= :now AND (priority, sort_key, uid) < (:priority, :sort_key, :uid)
    AND {waiting} LIMIT :limit
)

-- name: recent_ends(queue, since, limit)
SELECT finalized_at FROM jobs INDEXED BY jobs_by_end
WHERE queue = :queue AND status = {complete_target} AND finalized_at > :since ORDER BY finalized_at DESC LIMIT :limit

-- name: delayed_fifo(queue, priority, now)
SELECT count(*) FROM jobs INDEXED BY jobs_claimable
WHERE queue = :queue AND priority = :priority AND sort_key > :now AND {waiting}

-- name: delayed_lifo(queue, priority, now)
SELECT count(*) FROM jobs INDEXED BY jobs_claimable
WHERE queue = :queue AND priority = :priority AND {is_lifo} AND eligible_at > :now AND {waiting}

-- name: delayed_blocked(queue, now)
-- Blocked jobs were due when they were blocked; this finds some only if the clock was set back since.
SELECT count(*) FROM jobs INDEXED BY jobs_blocked
WHERE queue = :queue AND (sort_key > :now OR ({is_lifo} AND eligible_at > :now)) AND blocked = 1
