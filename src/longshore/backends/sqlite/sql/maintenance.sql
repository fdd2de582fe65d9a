-- name: next_owner(after_owner)
-- One step down jobs_held to the next worker that has a lease.
SELECT lease_owner FROM jobs INDEXED BY jobs_held
WHERE lease_owner > :after_owner AND lease_token IS NOT NULL ORDER BY lease_owner LIMIT 1

-- name: leases_ended(owner, now, limit)
-- A job whose status was set to running by hand has no owner.
SELECT {job_columns} FROM jobs INDEXED BY jobs_held
WHERE lease_owner IS :owner AND lease_expires_at <= :now AND lease_token IS NOT NULL
ORDER BY lease_expires_at, uid LIMIT :limit

-- name: jobs_held(queue)
SELECT {job_columns} FROM jobs INDEXED BY jobs_held
WHERE lease_token IS NOT NULL AND (:queue IS NULL OR queue = :queue) ORDER BY uid

-- name: jobs_held_by(owner)
SELECT {job_columns} FROM jobs INDEXED BY jobs_held WHERE lease_owner = :owner AND lease_token IS NOT NULL ORDER BY uid

-- name: cancellations_since(moment, limit)
SELECT {job_columns} FROM jobs INDEXED BY jobs_cancelling
WHERE status IN ({acknowledge_sources}) AND cancel_asked_at <= :moment ORDER BY cancel_asked_at, uid LIMIT :limit

-- name: expired_jobs(now, limit)
SELECT {job_columns} FROM jobs INDEXED BY jobs_expiring
WHERE expires_at <= :now AND status IN ({expire_sources}) ORDER BY expires_at, uid LIMIT :limit

-- name: jobs_to_announce(now, limit)
SELECT uid, id FROM jobs INDEXED BY jobs_to_announce
WHERE announce_at <= :now AND status IN ({claim_sources}) ORDER BY announce_at, uid LIMIT :limit

-- name: insert_promoted_events(first_event, now, uids)
INSERT INTO job_events (n, {event_columns})
SELECT :first_event + due.key, uid, jobs.id, job_seq + 1, queue, jobs.type, 'job.promoted', NULL, NULL, epoch,
    executions, assignee_id, '', :now, NULL
FROM json_each(:uids) AS due JOIN jobs ON uid = due.value

-- name: announce_jobs(now, uids)
UPDATE jobs SET announce_at = NULL, job_seq = job_seq + 1, updated_at = :now
WHERE uid IN (SELECT value FROM json_each(:uids))

-- name: jobs_ended_before(queue, status, moment, limit)
SELECT {job_columns} FROM jobs
WHERE queue = :queue AND status = :status AND finalized_at <= :moment ORDER BY finalized_at, uid LIMIT :limit

-- name: jobs_created_before(queue, moment, limit)
SELECT {job_columns} FROM jobs INDEXED BY jobs_by_status
WHERE queue = :queue AND status IN ({accept_sources}) AND {uncommon_status} AND created_at <= :moment
ORDER BY created_at, uid LIMIT :limit

-- name: jobs_beyond(queue, status, keep, limit)
-- The count says how many jobs there are above :keep, so that only those are read.
SELECT {job_columns} FROM jobs
WHERE queue = :queue AND status = :status AND finalized_at IS NOT NULL
ORDER BY finalized_at, uid
LIMIT max(0, min(:limit, coalesce(
    (SELECT jobs FROM queue_counts WHERE queue = :queue AND status = :status), 0
) - :keep))

-- name: forget_tombstones(moment, limit)
DELETE FROM tombstones
WHERE uid IN (SELECT uid FROM tombstones WHERE removed_at <= :moment ORDER BY removed_at LIMIT :limit)

-- name: oldest_events(after, limit)
SELECT n, queue, occurred_at FROM job_events WHERE n > :after ORDER BY n LIMIT :limit

-- name: delete_event(n)
DELETE FROM job_events WHERE n = :n

-- name: pruned(queue)
SELECT deleted_through, seen_through FROM pruned_events WHERE queue = :queue

-- name: pruned_anywhere()
SELECT coalesce(max(deleted_through), 0) FROM pruned_events

-- name: put_pruned(queue, deleted_through, seen_through)
INSERT OR REPLACE INTO pruned_events (queue, deleted_through, seen_through) VALUES ({parameters})

-- name: forget_workers(moment, limit)
DELETE FROM workers WHERE id IN (SELECT id FROM workers WHERE seen_at <= :moment LIMIT :limit)

-- name: counters_and_clock()
SELECT next_uid, next_event, boot_id, clock_wall, clock_since_boot FROM meta

-- name: save_counters(next_uid, next_event)
UPDATE meta SET next_uid = :next_uid, next_event = :next_event

-- name: anchor_clock(boot_id, wall, since_boot)
UPDATE meta SET boot_id = :boot_id, clock_wall = :wall, clock_since_boot = :since_boot

-- name: record_step(at, by)
UPDATE meta SET stepped_at = :at, stepped_by = :by

-- name: clock_step()
SELECT stepped_at, stepped_by FROM meta WHERE stepped_by IS NOT NULL

-- name: newest_event()
SELECT occurred_at FROM job_events WHERE n = (SELECT max(n) FROM job_events)

-- name: newest_time()
SELECT max(
    coalesce((SELECT occurred_at FROM job_events WHERE n = (SELECT max(n) FROM job_events)), 0),
    coalesce((SELECT max(seen_at) FROM workers), 0)
)

-- fragment: last_moment
-- The end of the year 9999.
253402300799999999

-- fragment: claimable_or_blocked
SELECT uid FROM jobs INDEXED BY jobs_claimable WHERE {waiting}
UNION ALL SELECT uid FROM jobs INDEXED BY jobs_blocked WHERE blocked = 1

-- name: shift_relative_times(step)
UPDATE jobs SET run_at = min(run_at + :step, {last_moment}), announce_at = min(announce_at + :step, {last_moment})
WHERE relative = 1 AND run_at IS NOT NULL AND uid IN (
    {claimable_or_blocked}
    UNION ALL SELECT uid FROM jobs INDEXED BY jobs_by_status
    WHERE status IN ({accept_sources}, {dependencies_completed_sources}) AND {uncommon_status}
)

-- fragment: shifted
relative = 1 AND run_at IS NOT NULL AND uid IN ({claimable_or_blocked})

-- name: insert_shifted_events(first_event, now)
INSERT INTO job_events (n, {event_columns})
SELECT :first_event + row_number() OVER (ORDER BY uid) - 1, uid, id, job_seq + 1, queue, type, 'job.delayed', NULL,
    NULL, epoch, executions, assignee_id, '', :now, json_object('until', run_at)
FROM jobs WHERE {shifted}

-- name: count_shifted_events()
UPDATE jobs SET job_seq = job_seq + 1 WHERE {shifted}

-- fragment: enqueued_at
-- When the job was enqueued or last retried; jobs enqueued while the clock was ahead keep their order.
min(coalesce(last_retry_at, created_at)
    + CASE WHEN coalesce(last_retry_at, created_at) > :now THEN min(:step, 0) ELSE 0 END, :now)

-- fragment: eligible_after_step
coalesce(max(run_at, {enqueued_at}), {enqueued_at})

-- name: shift_sort_keys(step, now)
-- Jobs whose times were shifted, and jobs enqueued while the clock was ahead.
UPDATE jobs SET eligible_at = {eligible_after_step},
    sort_key = CASE lifo WHEN 1 THEN sort_key ELSE {eligible_after_step} END
WHERE uid IN ({claimable_or_blocked}) AND ((relative = 1 AND run_at IS NOT NULL) OR eligible_at > :now)

-- name: shift_tags()
UPDATE job_tags SET sort_key = (SELECT jobs.sort_key FROM jobs WHERE jobs.uid = job_tags.uid)
WHERE claimable = 1 AND sort_key <> (SELECT jobs.sort_key FROM jobs WHERE jobs.uid = job_tags.uid)

-- name: shift_leases(step)
UPDATE jobs SET lease_expires_at = min(lease_expires_at + :step, {last_moment})
WHERE uid IN (SELECT uid FROM jobs INDEXED BY jobs_held WHERE lease_token IS NOT NULL AND lease_expires_at IS NOT NULL)

-- name: shift_cancellations(step)
UPDATE jobs SET cancel_asked_at = cancel_asked_at + :step
WHERE status IN ({acknowledge_sources}) AND cancel_asked_at IS NOT NULL

-- name: has_open_mark()
SELECT 1 FROM sqlite_schema WHERE name = 'open_mark'

-- name: open_mark()
SELECT mark, log_lost_at FROM open_mark

-- name: mark_open(mark)
UPDATE open_mark SET mark = :mark

-- name: record_lost_log(now)
UPDATE open_mark SET mark = '', log_lost_at = :now

-- name: begin_new_log()
UPDATE meta SET log = lower(hex(randomblob(4)))
