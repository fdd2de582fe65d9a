-- name: job_columns
uid, id, queue, type, payload, tags, options, priority, lifo, delay, expires_at, timeout, max_attempts, max_crashes,
idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id, deps_total, created_at, deps_left,
status, run_at, eligible_at, place, blocked, executions, retry_count, crashes, epoch, job_seq, updated_at, started_at,
finalized_at, last_retry_at, assigned_at, assignee_id, lease_owner, lease_token, lease_expires_at,
announce_at, cancel_asked_at, result, error_message, progress, checkpoint, relative

-- name: moved_columns
-- The columns that every store has, in the same order.
uid, id, queue, type, payload, tags, options, priority, lifo, delay, expires_at, timeout, max_attempts, max_crashes,
idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id, deps_total, created_at, deps_left,
status, run_at, eligible_at, place, blocked, executions, retry_count, crashes, epoch, job_seq, updated_at, started_at,
finalized_at, last_retry_at, assigned_at, assignee_id, lease_owner, lease_token, lease_expires_at,
announce_at, cancel_asked_at, result, error_message, progress, checkpoint

-- name: job_by_id
SELECT {job_columns} FROM jobs WHERE id = ?

-- name: job_by_uid
SELECT {job_columns} FROM jobs WHERE uid = ?

-- name: jobs_by_ids
SELECT {job_columns} FROM jobs WHERE id IN (SELECT value FROM json_each(?))

-- name: jobs_seen
{jobs_by_ids}

-- name: jobs_by_uids
SELECT {job_columns} FROM jobs WHERE uid IN (SELECT value FROM json_each(?)) ORDER BY uid

-- name: jobs_held
SELECT {job_columns} FROM jobs INDEXED BY jobs_held
WHERE lease_token IS NOT NULL AND (?1 IS NULL OR queue = ?1) ORDER BY uid

-- name: jobs_held_by
SELECT {job_columns} FROM jobs INDEXED BY jobs_held WHERE lease_owner = ? AND lease_token IS NOT NULL ORDER BY uid

-- name: next_owner
-- One step along the index of held jobs to the next worker who has any; workers are few.
SELECT lease_owner FROM jobs INDEXED BY jobs_held
WHERE lease_owner > ? AND lease_token IS NOT NULL ORDER BY lease_owner LIMIT 1

-- name: leases_ended
SELECT {job_columns} FROM jobs INDEXED BY jobs_held
WHERE lease_owner IS ?1 AND lease_expires_at <= ?2 AND lease_token IS NOT NULL
ORDER BY lease_expires_at, uid LIMIT ?3

-- name: cancellations_since
SELECT {job_columns} FROM jobs INDEXED BY jobs_cancelling
WHERE status = 'CANCELLING' AND cancel_asked_at <= ? ORDER BY cancel_asked_at, uid LIMIT ?

-- name: jobs_outlived
-- The statuses are spelled out: as parameters they would lose the partial index.
SELECT {job_columns} FROM jobs
WHERE expires_at <= ? AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY', 'WAITING_CHILDREN')
ORDER BY expires_at, uid LIMIT ?

-- name: jobs_ended_before
SELECT {job_columns} FROM jobs WHERE queue = ? AND status = ? AND finalized_at <= ? ORDER BY finalized_at, uid LIMIT ?

-- name: jobs_beyond
-- The count tells how many there are too many, so that only those are read.
SELECT {job_columns} FROM jobs
WHERE queue = ?1 AND status = ?2 AND finalized_at IS NOT NULL
ORDER BY finalized_at, uid
LIMIT max(0, min(?4, coalesce((SELECT jobs FROM queue_counts WHERE queue = ?1 AND status = ?2), 0) - ?3))

-- name: jobs_created_before
-- The second condition says nothing new; it lets the partial index be used.
SELECT {job_columns} FROM jobs INDEXED BY jobs_by_status
WHERE queue = ? AND status = 'CREATED' AND status NOT IN ('INITIAL_PENDING', 'RUNNING', 'COMPLETED') AND created_at <= ?
ORDER BY created_at, uid LIMIT ?

-- name: next_priority
-- One step down the claim's index to the next priority that has anybody in line, due or not.
SELECT priority FROM jobs INDEXED BY jobs_claimable
WHERE queue = ? AND priority > ?
AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0
ORDER BY priority LIMIT 1

-- name: in_line
queue = ?1 AND priority = ?2 AND place <= ?3 AND eligible_at <= ?3
AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0

-- name: of_type
-- Jobs of one type, from the index of types.
FROM jobs INDEXED BY jobs_of_type

-- name: first_priorities_of_types
-- The first priority of each type, due or not: one index seek each.
SELECT wanted.value, (
    SELECT priority {of_type} WHERE queue = ?1 AND type = wanted.value
    AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0 ORDER BY priority LIMIT 1
)
FROM json_each(?2) AS wanted

-- name: next_priority_of_type
SELECT priority {of_type} WHERE queue = ? AND type = ? AND priority > ?
AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0 ORDER BY priority LIMIT 1

-- name: first_of_type
SELECT {claim_columns} {of_type} WHERE {in_line} AND type = ?4 ORDER BY place, uid LIMIT ?5

-- name: claimable_of_type
SELECT {line_columns}, coalesce(running_count, 0), coalesce(window_start, 0), coalesce(window_count, 0)
{of_type} LEFT JOIN concurrency_keys AS kept ON kept.queue = jobs.queue AND kept.key = concurrency_key
WHERE jobs.{in_line} AND type = ?4 ORDER BY place, uid LIMIT ?5

-- name: full_keys
SELECT key FROM concurrency_keys
WHERE queue = ?1 AND (running_count >= ?4 OR (window_count >= ?5 AND window_start >= ?6))

-- name: line_columns
-- A job as a claim looks at it, to choose or pass over.
priority, place, uid, jobs.queue, concurrency_key, expires_at, blocked

-- name: line_with_keys
-- With what is known of its key.
{line_columns}, coalesce(running_count, 0), coalesce(window_start, 0), coalesce(window_count, 0)
FROM jobs INDEXED BY jobs_claimable
LEFT JOIN concurrency_keys AS kept ON kept.queue = jobs.queue AND kept.key = concurrency_key

-- name: claimable
-- For FIFO jobs place is eligible_at, so future ones are the tail that is never read; LIFO jobs are judged one by one.
SELECT {line_with_keys} WHERE jobs.{in_line} AND (place, uid) > (?4, ?5) ORDER BY place, uid LIMIT ?6

-- name: claim_columns
-- A job as it is once it is claimed, in the order of the fields of Job. What all jobs of a claim share is left out, and
-- two of those columns carry something else: what its status was, and (for updated_at) its place in line.
id, type, payload, queue, tags, status, priority, lifo, run_at, delay, expires_at, timeout, max_attempts, max_crashes,
idempotency_key, concurrency_key, parent_id, deps_total, on_dependency_failure, options, uid, executions + 1,
retry_count, crashes, epoch + 1, created_at, place, started_at, finalized_at, last_retry_at, NULL, NULL, NULL, result,
error_message, progress, checkpoint, schedule_id

-- name: first_in_line
SELECT {claim_columns} FROM jobs INDEXED BY jobs_claimable WHERE {in_line} ORDER BY place, uid LIMIT ?4

-- name: first_with_keys
-- The same with what is known of its key.
SELECT {claim_columns}, coalesce(running_count, 0), coalesce(window_start, 0), coalesce(window_count, 0)
FROM jobs INDEXED BY jobs_claimable
LEFT JOIN (SELECT queue AS of, key, running_count, window_start, window_count FROM concurrency_keys) AS kept
ON of = queue AND key = concurrency_key
WHERE {in_line} ORDER BY place, uid LIMIT ?4

-- name: claimable_with_free_slots
-- Jobs of keys that are full already are passed over here, where it is cheap.
SELECT {line_with_keys} WHERE jobs.{in_line} AND (concurrency_key IS NULL OR concurrency_key NOT IN ({full_keys}))
AND (place, uid) > (?7, ?8) ORDER BY place, uid LIMIT ?9

-- name: jobs_to_claim
SELECT {claim_columns} FROM jobs WHERE uid IN (SELECT value FROM json_each(?))

-- name: look_ahead
SELECT uid, concurrency_key IS NOT NULL AND concurrency_key IN ({full_keys})
FROM jobs INDEXED BY jobs_claimable WHERE {in_line} ORDER BY place, uid LIMIT ?7

-- name: lifo_places
-- LIFO jobs stand in their own order, before all times there are.
place <= -1152921504606846976

-- name: delayed_in_line
SELECT count(*) FROM jobs INDEXED BY jobs_claimable
WHERE queue = ?1 AND priority = ?2 AND place > ?3
AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0

-- name: delayed_lifo
SELECT count(*) FROM jobs INDEXED BY jobs_claimable
WHERE queue = ?1 AND priority = ?2 AND {lifo_places} AND eligible_at > ?3
AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0

-- name: delayed_blocked
-- Their time had come when they were blocked; but a clock may have been set back since.
SELECT count(*) FROM jobs INDEXED BY jobs_blocked
WHERE queue = ?1 AND (place > ?2 OR ({lifo_places} AND eligible_at > ?2)) AND blocked = 1

-- name: next_due
-- In one statement, because idle workers ask again and again: from one priority to the next, and of each the first.
WITH RECURSIVE priorities (queue, priority) AS (
    SELECT line.value, (
        SELECT leading.priority FROM jobs AS leading INDEXED BY jobs_claimable
        WHERE leading.queue = line.value
        AND leading.status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND leading.blocked = 0
        ORDER BY leading.priority LIMIT 1
    )
    FROM json_each(?1) AS line
    UNION ALL
    SELECT priorities.queue, (
        SELECT following.priority FROM jobs AS following INDEXED BY jobs_claimable
        WHERE following.queue = priorities.queue AND following.priority > priorities.priority
        AND following.status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND following.blocked = 0
        ORDER BY following.priority LIMIT 1
    )
    FROM priorities WHERE priorities.priority IS NOT NULL
)
SELECT min((
    SELECT coming.place FROM jobs AS coming INDEXED BY jobs_claimable
    WHERE coming.queue = priorities.queue AND coming.priority = priorities.priority AND coming.place > ?2
    AND coming.status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND coming.blocked = 0
    ORDER BY coming.place LIMIT 1
))
FROM priorities

-- name: next_tagged_priority
SELECT priority FROM job_tags INDEXED BY job_tags_claimable
WHERE tag = ? AND queue = ? AND priority > ? AND claimable = 1 ORDER BY priority LIMIT 1

-- name: tagged_claimable
-- Driven by the rarest tag; the others are looked up by their key. A row is read only once its tags all match.
SELECT uid FROM job_tags AS first INDEXED BY job_tags_claimable
WHERE tag = ?1 AND queue = ?2 AND priority = ?3 AND place <= ?4 AND claimable = 1
AND NOT EXISTS (
    SELECT 1 FROM json_each(?5) AS other
    WHERE NOT EXISTS (SELECT 1 FROM job_tags WHERE tag = other.value AND uid = first.uid)
)
ORDER BY place, uid

-- name: claimable_by_uid
SELECT {line_columns} FROM jobs
WHERE uid = ?1 AND eligible_at <= ?2 AND (?3 IS NULL OR type IN (SELECT value FROM json_each(?3)))

-- name: uid_with_free_slots
SELECT {line_columns} FROM jobs
WHERE uid = ?2 AND eligible_at <= ?3 AND (?7 IS NULL OR type IN (SELECT value FROM json_each(?7)))
AND (concurrency_key IS NULL OR concurrency_key NOT IN (
    SELECT key FROM concurrency_keys WHERE queue = ?1 AND key = jobs.concurrency_key
    AND (running_count >= ?4 OR (window_count >= ?5 AND window_start >= ?6))
))

-- name: waiting_with_tag
SELECT count(*) FROM (SELECT 1 FROM job_tags WHERE tag = ? AND claimable = 1 LIMIT ?)

-- name: uids_with_tags
SELECT uid FROM job_tags AS first
WHERE tag = ?1 AND (?2 IS NULL OR queue = ?2)
AND NOT EXISTS (
    SELECT 1 FROM json_each(?3) AS other
    WHERE NOT EXISTS (SELECT 1 FROM job_tags WHERE tag = other.value AND uid = first.uid)
)
ORDER BY uid

-- name: tallies_with_tags
SELECT status, count(*), sum(retry_count) FROM job_tags AS first
WHERE tag = ?1 AND (?2 IS NULL OR queue = ?2)
AND NOT EXISTS (
    SELECT 1 FROM json_each(?3) AS other
    WHERE NOT EXISTS (SELECT 1 FROM job_tags WHERE tag = other.value AND uid = first.uid)
)
GROUP BY status

-- name: tallies_with_tag
SELECT status, count(*), sum(retry_count) FROM job_tags WHERE tag = ?1 AND (?2 IS NULL OR queue = ?2) GROUP BY status

-- name: tallies
SELECT status, sum(jobs), sum(retries) FROM queue_counts WHERE ?1 IS NULL OR queue = ?1 GROUP BY status

-- name: counts
SELECT queue, status, jobs FROM queue_counts WHERE jobs > 0

-- name: insert_job
-- What a new job cannot have yet is left to the defaults of the table. An id in use shows in the number of changes.
INSERT INTO jobs (
    uid, id, queue, type, payload, options, priority, lifo, delay, expires_at, timeout, max_attempts, max_crashes,
    idempotency_key, concurrency_key, parent_id, on_dependency_failure, schedule_id, deps_total, created_at, deps_left,
    status, run_at, eligible_at, place, announce_at, job_seq, updated_at, tags, relative
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING

-- name: save_job
-- The fence: the row must still be the version this change was made from, or nothing is written.
UPDATE jobs SET
    relative = ?, deps_left = ?, status = ?, run_at = ?, eligible_at = ?, place = ?, blocked = ?, executions = ?, retry_count = ?,
    crashes = ?, epoch = ?, job_seq = ?, updated_at = ?, started_at = ?, finalized_at = ?, last_retry_at = ?,
    assigned_at = ?, assignee_id = ?, lease_owner = ?, lease_token = ?, lease_expires_at = ?, announce_at = ?,
    cancel_asked_at = ?, result = ?, error_message = ?
WHERE uid = ? AND job_seq = ?

-- name: claim
-- Every job of a claim gets the same owner, token, lease and time.
status = 'RUNNING', blocked = 0, executions = executions + 1, epoch = epoch + 1, job_seq = job_seq + 1, updated_at = ?1,
started_at = coalesce(started_at, ?1), assigned_at = ?1, assignee_id = ?2, lease_owner = ?2, lease_token = ?3,
lease_expires_at = ?4

-- name: claim_jobs
UPDATE jobs SET {claim}
WHERE uid IN (SELECT value FROM json_each(?5)) AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY')

-- name: claim_span
-- Jobs that came in one after the other mostly leave so, too; to go from one to the next is cheaper than to look each up.
UPDATE jobs SET {claim}
WHERE uid BETWEEN ?5 AND ?6 AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY')

-- name: jobs_to_complete
-- Of these jobs, in the order they were given, those that run under a lease in force, and whose end concerns nothing but
-- themselves and their keys: nothing is removed after it. What each is compared by comes with it.
SELECT given.key, epoch, lease_token, uid, lease_owner, queue, concurrency_key, status, retry_count, place, tags
FROM json_each(?1) AS given CROSS JOIN jobs ON jobs.id = given.value
WHERE status = 'RUNNING' AND (lease_expires_at IS NULL OR lease_expires_at > ?2) AND lease_owner = assignee_id
AND instr(options, '"remove_on_complete"') = 0

-- name: completion
status = 'COMPLETED', result = ?1, error_message = '', finalized_at = ?2, updated_at = ?2, job_seq = job_seq + 1,
started_at = coalesce(started_at, ?2), lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL

-- name: complete_jobs
UPDATE jobs SET {completion}
WHERE uid IN (SELECT value FROM json_each(?3)) AND status = 'RUNNING'

-- name: complete_span
UPDATE jobs SET {completion}
WHERE uid BETWEEN ?3 AND ?4 AND status = 'RUNNING'

-- name: complete_job
UPDATE jobs SET {completion}
WHERE uid = ?3 AND status = 'RUNNING'

-- name: jobs_to_accept
-- Of these jobs, in the order they were given, those that may be claimed once they are accepted, with the place in line
-- that they take then.
SELECT uid, queue, status, retry_count, min(created_at, ?2), tags
FROM json_each(?1) AS given CROSS JOIN jobs ON jobs.id = given.value
WHERE status = 'CREATED' AND deps_left = 0 AND run_at IS NULL AND last_retry_at IS NULL AND lifo = 0

-- name: insert_accepted_events
INSERT INTO job_events
SELECT ?1 + accepted.key, uid, jobs.id, job_seq + 1, queue, jobs.type, 'job.accepted', status, 'INITIAL_PENDING', epoch,
    executions, assignee_id, ?3, ?2, NULL
FROM json_each(?4) AS accepted JOIN jobs ON uid = accepted.value

-- name: accept_jobs
UPDATE jobs SET status = 'INITIAL_PENDING', eligible_at = min(created_at, ?1), place = min(created_at, ?1), blocked = 0,
    announce_at = NULL, job_seq = job_seq + 1, updated_at = ?1
WHERE uid IN (SELECT value FROM json_each(?2)) AND status = 'CREATED'

-- name: jobs_to_announce
SELECT uid, id FROM jobs INDEXED BY jobs_to_announce
WHERE announce_at <= ? AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY')
ORDER BY announce_at, uid LIMIT ?

-- name: announce_jobs
UPDATE jobs SET announce_at = NULL, job_seq = job_seq + 1, updated_at = ?1
WHERE uid IN (SELECT value FROM json_each(?2))

-- name: save_lease
UPDATE jobs SET lease_expires_at = ? WHERE uid = ? AND epoch = ?

-- name: save_progress
UPDATE jobs SET progress = ?, job_seq = ?, updated_at = ? WHERE uid = ?

-- name: save_checkpoint
UPDATE jobs SET checkpoint = ?, updated_at = ? WHERE uid = ?

-- name: save_log_mark
UPDATE jobs SET job_seq = ? WHERE uid = ?

-- name: insert_log
INSERT INTO job_logs SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4 FROM job_logs WHERE uid = ?1

-- name: logs
SELECT number, at, level, message FROM job_logs WHERE uid = ? AND number > ? ORDER BY number

-- name: delete_logs
DELETE FROM job_logs WHERE uid = ?

-- name: uid_of
SELECT uid FROM jobs WHERE id = ?

-- name: delete_job
DELETE FROM jobs WHERE uid = ?

-- name: insert_tombstone
INSERT INTO tombstones (uid, id, queue, type, status, idempotency_key, removed_at, request)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: forget_tombstones
DELETE FROM tombstones WHERE uid IN (SELECT uid FROM tombstones WHERE removed_at <= ? ORDER BY removed_at LIMIT ?)

-- name: insert_tag
INSERT INTO job_tags VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: save_tag
UPDATE job_tags SET place = ?, claimable = ?, status = ?, retry_count = ? WHERE tag = ? AND uid = ?

-- name: delete_tag
DELETE FROM job_tags WHERE tag = ? AND uid = ?

-- name: add_to_count
INSERT INTO queue_counts VALUES (?, ?, ?, ?)
ON CONFLICT (queue, status) DO UPDATE SET jobs = jobs + excluded.jobs, retries = retries + excluded.retries

-- name: jobs_of_keys
-- The keys lead: each is one step in their index, however many jobs there are.
SELECT jobs.idempotency_key, jobs.id FROM json_each(?2) AS wanted CROSS JOIN jobs INDEXED BY jobs_by_key
WHERE jobs.queue = ?1 AND jobs.idempotency_key = wanted.value

-- name: removed_jobs_of_keys
-- In order of uid, so that of several jobs with one key the last is what remains.
SELECT tombstones.idempotency_key, tombstones.id FROM json_each(?2) AS wanted
CROSS JOIN tombstones INDEXED BY tombstones_by_key
WHERE tombstones.queue = ?1 AND tombstones.idempotency_key = wanted.value AND tombstones.removed_at > ?3
ORDER BY tombstones.uid

-- name: job_behind_key
SELECT {job_columns} FROM jobs WHERE queue = ? AND idempotency_key = ?

-- name: tombstone_behind_key
SELECT uid, id, queue, type, status, idempotency_key, request FROM tombstones
WHERE queue = ? AND idempotency_key = ? AND removed_at > ?
ORDER BY uid DESC LIMIT 1

-- name: ids_taken
-- Those that were there before the batch that begins with this uid.
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND uid < ?

-- name: statuses
SELECT id, status FROM jobs WHERE id IN (SELECT value FROM json_each(?))

-- name: removed_statuses
-- In order of uid, so that of several jobs with one id the last is what remains.
SELECT id, status FROM tombstones WHERE id IN (SELECT value FROM json_each(?)) AND removed_at > ? ORDER BY uid

-- name: put_edge
INSERT INTO job_dependencies VALUES (?, ?, ?, ?, ?)
ON CONFLICT (dependent_uid, depends_on) DO UPDATE SET state = excluded.state

-- name: any_open_edge
SELECT EXISTS (SELECT 1 FROM job_dependencies WHERE state <> 'satisfied')

-- name: open_edges
SELECT dependent_uid, depends_on, policy, state, position FROM job_dependencies
WHERE depends_on IN (SELECT value FROM json_each(?)) AND state <> 'satisfied'
ORDER BY dependent_uid, depends_on

-- name: stopping_edges
-- In this order, each down an index, whatever the planner expects.
CROSS JOIN jobs CROSS JOIN job_dependencies AS edge
WHERE jobs.status = 'WAITING_CHILDREN' AND edge.depends_on = jobs.id AND edge.state <> 'satisfied'
AND edge.state = 'waiting' AND edge.policy = 'stop'

-- name: edges_that_stop
-- From one who waits to whoever waits for them, and so on.
WITH RECURSIVE onward AS (
    SELECT edge.* FROM json_each(?) AS stopped {stopping_edges} AND jobs.uid = stopped.value
    UNION
    SELECT edge.* FROM onward {stopping_edges} AND jobs.uid = onward.dependent_uid
)
SELECT dependent_uid, depends_on, policy, state, position FROM onward ORDER BY dependent_uid, depends_on

-- name: edges_from
SELECT dependent_uid, depends_on, policy, state, position FROM job_dependencies
WHERE dependent_uid = (SELECT uid FROM jobs WHERE id = ?) ORDER BY position

-- name: dependencies_of
SELECT dependent_uid, depends_on FROM job_dependencies WHERE dependent_uid IN (SELECT value FROM json_each(?))
ORDER BY dependent_uid, position

-- name: count_down
UPDATE jobs SET deps_left = deps_left - ? WHERE uid = ? RETURNING deps_left

-- name: delete_edges
DELETE FROM job_dependencies WHERE dependent_uid = ?

-- name: queue_columns
name, paused, running_limit, per_key, rate_count, rate_per, key_rate_count, key_rate_per, window_start, window_count,
keep_finished, keep_dead, keep_events

-- name: queue
SELECT {queue_columns} FROM queues WHERE name = ?

-- name: queues
SELECT {queue_columns} FROM queues

-- name: queues_ever_seen
SELECT queue FROM queue_counts UNION SELECT name FROM queues ORDER BY 1

-- name: remember_queues
INSERT OR IGNORE INTO queue_counts SELECT value, 'CREATED', 0, 0 FROM json_each(?)

-- name: counts_of
SELECT status, jobs FROM queue_counts WHERE queue = ?

-- name: put_queue
INSERT OR REPLACE INTO queues ({queue_columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: holders
-- The index holds only what runs now; a job that was set running by hand has nobody's name on it.
SELECT assigned_at, id, lease_owner FROM jobs INDEXED BY jobs_held
WHERE lease_token IS NOT NULL AND queue = ?1 AND (?2 IS NULL OR concurrency_key = ?2) LIMIT ?3

-- name: ahead_of
SELECT count(*) FROM (
    SELECT 1 FROM jobs INDEXED BY jobs_claimable
    WHERE queue = ?1 AND eligible_at <= ?2 AND (priority, place, uid) < (?3, ?4, ?5)
    AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0 LIMIT ?6
)

-- name: recent_ends
SELECT finalized_at FROM jobs INDEXED BY jobs_by_end
WHERE queue = ? AND status = 'COMPLETED' AND finalized_at > ? ORDER BY finalized_at DESC LIMIT ?

-- name: key_states
SELECT queue, key, running_count, window_start, window_count FROM concurrency_keys
WHERE queue = ? AND key IN (SELECT value FROM json_each(?))

-- name: keys_waking
-- Those whose time has come, and those further off than any window: the clock was set back since.
SELECT queue, key, running_count, window_start, window_count FROM concurrency_keys
WHERE queue = ?1 AND window_ends_at <= ?2
UNION ALL
SELECT queue, key, running_count, window_start, window_count FROM concurrency_keys
WHERE queue = ?1 AND window_ends_at > ?3

-- name: rated_queues
SELECT {queue_columns} FROM queues WHERE rate_count IS NOT NULL OR key_rate_count IS NOT NULL

-- name: next_waking
SELECT window_ends_at FROM concurrency_keys WHERE queue = ? AND window_ends_at > ? ORDER BY window_ends_at LIMIT 1

-- name: use_keys
-- So many (?2) of each key are held more, and where the queue has a rate for each, have started in the window from ?4 to ?5.
INSERT INTO concurrency_keys AS kept (queue, key, running_count, window_start, window_count, window_ends_at)
SELECT ?1, value, ?2, coalesce(?4, 0), iif(?4 IS NULL, 0, ?2), ?5 FROM json_each(?3) WHERE true
ON CONFLICT (queue, key) DO UPDATE SET
    running_count = kept.running_count + ?2,
    window_count = CASE WHEN ?4 IS NULL THEN kept.window_count
        WHEN kept.window_start BETWEEN ?4 AND ?5 THEN kept.window_count + ?2 ELSE ?2 END,
    window_start = iif(?4 IS NULL OR kept.window_start BETWEEN ?4 AND ?5, kept.window_start, ?4),
    window_ends_at = CASE WHEN ?4 IS NULL THEN kept.window_ends_at
        WHEN kept.window_start BETWEEN ?4 AND ?5 THEN kept.window_start + ?5 - ?4 ELSE ?5 END

-- name: give_back_keys
UPDATE concurrency_keys SET running_count = running_count - ?2 WHERE queue = ?1 AND key IN (SELECT value FROM json_each(?3))

-- name: forget_idle_keys
-- Those of which nothing is held any more, nor has started in the window from ?3 to ?4: a clock may have been set back.
DELETE FROM concurrency_keys WHERE queue = ?1 AND key IN (SELECT value FROM json_each(?2))
AND running_count = 0 AND (window_count = 0 OR ?3 IS NULL OR window_start NOT BETWEEN ?3 AND ?4)

-- name: put_key
INSERT OR REPLACE INTO concurrency_keys VALUES (?, ?, ?, ?, ?, ?)

-- name: forget_keys
DELETE FROM concurrency_keys WHERE queue = ? AND key IN (SELECT value FROM json_each(?))

-- name: delete_keys
DELETE FROM concurrency_keys WHERE queue = ?

-- name: windows_of_keys
SELECT key, window_start, window_count FROM concurrency_keys WHERE queue = ? AND window_count > 0

-- name: holding_by_key
SELECT concurrency_key, count(*) FROM jobs INDEXED BY jobs_held
WHERE lease_token IS NOT NULL AND queue = ? AND concurrency_key IS NOT NULL GROUP BY concurrency_key

-- name: block
UPDATE jobs SET blocked = 1 WHERE uid IN (SELECT value FROM json_each(?))

-- name: types_with_blocked
-- Of these keys (?2), each type that has blocked jobs: one step in the index for each type, and one more for each key.
WITH RECURSIVE found (key, type) AS (
    SELECT given.value, (
        SELECT type FROM jobs INDEXED BY jobs_blocked
        WHERE queue = ?1 AND concurrency_key = given.value AND blocked = 1 ORDER BY type LIMIT 1
    ) FROM json_each(?2) AS given
    UNION ALL
    SELECT found.key, (
        SELECT type FROM jobs INDEXED BY jobs_blocked
        WHERE queue = ?1 AND concurrency_key = found.key AND type > found.type AND blocked = 1 ORDER BY type LIMIT 1
    ) FROM found WHERE found.type IS NOT NULL
)
SELECT key, type FROM found WHERE type IS NOT NULL

-- name: first_blocked
SELECT uid FROM jobs INDEXED BY jobs_blocked
WHERE queue = ? AND concurrency_key = ? AND type = ? AND blocked = 1 ORDER BY priority, place, uid LIMIT ?

-- name: unblock
UPDATE jobs SET blocked = 0 WHERE uid IN (SELECT value FROM json_each(?))

-- name: any_blocked
SELECT 1 FROM jobs INDEXED BY jobs_blocked WHERE queue = ? AND blocked = 1 LIMIT 1

-- name: all_blocked
SELECT uid FROM jobs INDEXED BY jobs_blocked WHERE queue = ? AND blocked = 1

-- name: insert_event
INSERT INTO job_events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_added_events
-- The first event of every job of the batch, in one statement; the batch is all that has its uid or a later one.
INSERT INTO job_events
SELECT ?1 + uid - ?2, uid, id, 1, queue, type, 'job.added', NULL, status, 0, 0, NULL, ?4, ?3,
    CASE WHEN concurrency_key IS NOT NULL OR schedule_id IS NOT NULL OR parent_id IS NOT NULL THEN json_patch(
        '{}', json_object('key', concurrency_key, 'schedule_id', schedule_id, 'parent_id', parent_id)
    ) END
FROM jobs WHERE uid >= ?2 ORDER BY uid

-- name: insert_active_events
-- The events of a whole claim, written just before it: what each job is now, and is about to become.
INSERT INTO job_events
SELECT ?1 + claimed.key, uid, jobs.id, job_seq + 1, queue, jobs.type, 'job.active', status, 'RUNNING', epoch + 1,
    executions + 1, ?2, '', ?3, NULL
FROM json_each(?4) AS claimed JOIN jobs ON uid = claimed.value

-- name: insert_completed_events
INSERT INTO job_events
SELECT ?1 + done.key, uid, jobs.id, job_seq + 1, queue, jobs.type, 'job.completed', status, 'COMPLETED', epoch,
    executions, assignee_id, '', ?2, NULL
FROM json_each(?3) AS done JOIN jobs ON uid = done.value

-- name: insert_promoted_events
-- Written just before the jobs are, as they tell of what each was.
INSERT INTO job_events
SELECT ?1 + due.key, uid, jobs.id, job_seq + 1, queue, jobs.type, 'job.promoted', NULL, NULL, epoch, executions,
    assignee_id, '', ?2, NULL
FROM json_each(?3) AS due JOIN jobs ON uid = due.value

-- name: event_columns
n, job_uid, job_id, job_seq, queue, type, event, from_status, to_status, epoch, execution, assignee_id, actor,
occurred_at, detail

-- name: events
SELECT {event_columns} FROM job_events WHERE n > ? ORDER BY n LIMIT ?

-- name: events_of_queue
SELECT {event_columns} FROM job_events WHERE n > ? AND queue = ? ORDER BY n LIMIT ?

-- name: events_of_job
SELECT {event_columns} FROM job_events INDEXED BY job_events_by_job
WHERE n > ?1 AND job_id = ?2 AND (?3 IS NULL OR queue = ?3) ORDER BY n LIMIT ?4

-- name: event_after
SELECT n FROM job_events WHERE n > ? AND n <= ? ORDER BY n LIMIT 1 OFFSET ?

-- name: bulk_jobs
-- What is read in bulk is put together around these: columns before, conditions behind.
FROM jobs

-- name: bulk_job_events
FROM job_events

-- name: bulk_job_logs
FROM job_logs JOIN jobs USING (uid)

-- name: staged_run
SELECT offered, inserted FROM staged_runs WHERE run = ? AND offered IS NOT NULL

-- name: touch_staged_run
INSERT INTO staged_runs (run, touched_at) VALUES (?, ?)
ON CONFLICT (run) DO UPDATE SET touched_at = excluded.touched_at

-- name: stage_job
INSERT INTO staged_jobs (run, part, job) VALUES (?, ?, ?)

-- name: staged_jobs
SELECT job FROM staged_jobs WHERE run = ? AND part IN (SELECT value FROM json_each(?)) ORDER BY number

-- name: finish_staged_run
INSERT INTO staged_runs (run, touched_at, offered, inserted) VALUES (?, ?, ?, ?)
ON CONFLICT (run) DO UPDATE SET
    touched_at = excluded.touched_at, offered = excluded.offered, inserted = excluded.inserted

-- name: clear_staged_jobs
DELETE FROM staged_jobs WHERE run = ?

-- name: drop_staged_run
DELETE FROM staged_runs WHERE run = ?

-- name: silent_runs
SELECT run FROM staged_runs WHERE touched_at < iif(offered IS NULL, ?, ?)

-- name: token_columns
id, name, hash, scopes, queues, created_at, expires_at, revoked_at, last_used_at

-- name: tokens
SELECT {token_columns} FROM api_tokens

-- name: token_by_id
SELECT {token_columns} FROM api_tokens WHERE id = ?

-- name: insert_token
INSERT INTO api_tokens (id, name, hash, scopes, queues, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: revoke_token
UPDATE api_tokens SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1

-- name: touch_token
UPDATE api_tokens SET last_used_at = ?2 WHERE id = ?1

-- name: forget_tokens
DELETE FROM api_tokens WHERE revoked_at <= ?1 OR expires_at <= ?1

-- name: oldest_events
SELECT n, queue, occurred_at FROM job_events WHERE n > ? ORDER BY n LIMIT ?

-- name: delete_event
DELETE FROM job_events WHERE n = ?

-- name: pruned
SELECT deleted_through, seen_through FROM pruned_events WHERE queue = ?

-- name: pruned_anywhere
SELECT coalesce(max(deleted_through), 0) FROM pruned_events

-- name: put_pruned
INSERT OR REPLACE INTO pruned_events VALUES (?, ?, ?)

-- name: schedule_columns
next_run_at, last_run_at, last_job_id, run_count, updated_at, body

-- name: put_schedules
INSERT OR REPLACE INTO schedules (id, next_run_at, last_run_at, last_job_id, run_count, updated_at, paused, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: move_schedules
UPDATE schedules SET next_run_at = ?, last_run_at = ?, last_job_id = ?, run_count = ?, updated_at = ? WHERE id = ?

-- name: schedules
SELECT {schedule_columns} FROM schedules ORDER BY id

-- name: schedules_by_ids
SELECT {schedule_columns} FROM schedules WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id

-- name: schedules_due
SELECT {schedule_columns} FROM schedules WHERE next_run_at > ? AND next_run_at <= ? AND paused = 0
ORDER BY next_run_at, id LIMIT ?

-- name: schedules_ahead
-- All of them are read for it, so it is not asked often.
SELECT {schedule_columns} FROM schedules WHERE updated_at > ? AND paused = 0 ORDER BY id LIMIT ?

-- name: next_firing
SELECT min(next_run_at) FROM schedules WHERE next_run_at IS NOT NULL AND paused = 0

-- name: delete_schedule
DELETE FROM schedules WHERE id = ?

-- name: put_worker
INSERT OR REPLACE INTO workers VALUES (?, ?, ?)

-- name: forget_workers
DELETE FROM workers WHERE id IN (SELECT id FROM workers WHERE seen_at <= ? LIMIT ?)

-- name: workers
SELECT body FROM workers ORDER BY id

-- name: meta
SELECT log, next_uid, next_event FROM meta

-- name: counters_and_clock
SELECT next_uid, next_event, boot_id, clock_wall, clock_since_boot FROM meta

-- name: anchor_clock
UPDATE meta SET boot_id = ?, clock_wall = ?, clock_since_boot = ?

-- name: record_step
UPDATE meta SET stepped_at = ?, stepped_by = ?

-- name: clock_step
SELECT stepped_at, stepped_by FROM meta WHERE stepped_by IS NOT NULL

-- name: newest_event
SELECT occurred_at FROM job_events WHERE n = (SELECT max(n) FROM job_events)

-- name: newest_time
SELECT max(
    coalesce((SELECT occurred_at FROM job_events WHERE n = (SELECT max(n) FROM job_events)), 0),
    coalesce((SELECT max(seen_at) FROM workers), 0)
)

-- name: uids_in_line
SELECT uid FROM jobs INDEXED BY jobs_claimable
WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0
UNION ALL SELECT uid FROM jobs INDEXED BY jobs_blocked WHERE blocked = 1

-- name: shift_relative_times
-- No time may reach beyond the year 9999.
UPDATE jobs SET run_at = min(run_at + ?1, 253402300799999999), announce_at = min(announce_at + ?1, 253402300799999999)
WHERE relative = 1 AND run_at IS NOT NULL AND uid IN (
    {uids_in_line}
    UNION ALL SELECT uid FROM jobs INDEXED BY jobs_by_status
    WHERE status IN ('CREATED', 'WAITING_CHILDREN') AND status NOT IN ('INITIAL_PENDING', 'RUNNING', 'COMPLETED')
)

-- name: shifted
relative = 1 AND run_at IS NOT NULL AND uid IN ({uids_in_line})

-- name: insert_shifted_events
INSERT INTO job_events
SELECT ?1 + row_number() OVER (ORDER BY uid) - 1, uid, id, job_seq + 1, queue, type, 'job.delayed', NULL, NULL, epoch,
    executions, assignee_id, '', ?2, json_object('until', run_at)
FROM jobs WHERE {shifted}

-- name: count_shifted_events
UPDATE jobs SET job_seq = job_seq + 1 WHERE {shifted}

-- name: came_at
-- When the job was enqueued; jobs enqueued while the clock was ahead of ?2 keep their order.
min(coalesce(last_retry_at, created_at)
    + CASE WHEN coalesce(last_retry_at, created_at) > ?2 THEN min(?1, 0) ELSE 0 END, ?2)

-- name: eligible_after_step
coalesce(max(run_at, {came_at}), {came_at})

-- name: shift_places
-- The places of jobs whose times were shifted, and of jobs enqueued while the clock was ahead.
UPDATE jobs SET eligible_at = {eligible_after_step}, place = CASE lifo WHEN 1 THEN place ELSE {eligible_after_step} END
WHERE uid IN ({uids_in_line}) AND ((relative = 1 AND run_at IS NOT NULL) OR eligible_at > ?2)

-- name: shift_tags
UPDATE job_tags SET place = (SELECT jobs.place FROM jobs WHERE jobs.uid = job_tags.uid)
WHERE claimable = 1 AND place <> (SELECT jobs.place FROM jobs WHERE jobs.uid = job_tags.uid)

-- name: shift_leases
UPDATE jobs SET lease_expires_at = min(lease_expires_at + ?1, 253402300799999999)
WHERE uid IN (SELECT uid FROM jobs INDEXED BY jobs_held WHERE lease_token IS NOT NULL AND lease_expires_at IS NOT NULL)

-- name: shift_cancellations
UPDATE jobs SET cancel_asked_at = cancel_asked_at + ?1 WHERE status = 'CANCELLING' AND cancel_asked_at IS NOT NULL

-- name: save_counters
UPDATE meta SET next_uid = ?, next_event = ?

-- name: begin_new_log
UPDATE meta SET log = lower(hex(randomblob(4)))

-- name: weight
-- What a row's sums are multiplied by, so that two rows with each other's values do not add up to the same.
(uid % 997 + 1)

-- name: status_number
-- A number for each status that every dialect makes alike; it is the length and the first letter that tell them apart.
(length(status) * 128 + unicode(status))

-- name: span_of_jobs
-- Two questions, because each alone is one step in the index.
SELECT (SELECT min(uid) FROM jobs), (SELECT max(uid) FROM jobs)

-- name: span_of_job_dependencies
SELECT (SELECT min(dependent_uid) FROM job_dependencies), (SELECT max(dependent_uid) FROM job_dependencies)

-- name: span_of_job_logs
SELECT (SELECT min(uid) FROM job_logs), (SELECT max(uid) FROM job_logs)

-- name: span_of_tombstones
SELECT (SELECT min(uid) FROM tombstones), (SELECT max(uid) FROM tombstones)

-- name: span_of_job_events
SELECT (SELECT min(n) FROM job_events), (SELECT max(n) FROM job_events)

-- name: digest_of_jobs
-- Whatever happens to a job changes one of these: its version, or where no event is written for it, one of the others.
SELECT
    count(*), sum({weight} * job_seq), sum({weight} * {status_number}), sum({weight} * retry_count),
    sum({weight} * (updated_at % 1000003)), sum({weight} * (coalesce(lease_expires_at, 0) % 1000003)),
    sum({weight} * blocked), sum({weight} * deps_left),
    sum({weight} * (place % 1000003)), sum(length(payload)), sum(length(result)), sum(length(checkpoint))
FROM jobs WHERE uid >= ? AND uid < ?

-- name: digest_of_job_dependencies
SELECT count(*), sum((dependent_uid % 997 + 1) * (position + 1)), sum((dependent_uid % 997 + 1) * length(state))
FROM job_dependencies WHERE dependent_uid >= ? AND dependent_uid < ?

-- name: digest_of_job_logs
SELECT count(*), sum({weight} * number), sum({weight} * (at % 1000003)) FROM job_logs WHERE uid >= ? AND uid < ?

-- name: digest_of_tombstones
SELECT
    count(*), sum({weight} * (removed_at % 1000003)), sum({weight} * {status_number}), sum({weight} * length(request))
FROM tombstones WHERE uid >= ? AND uid < ?

-- name: digest_of_job_events
SELECT count(*), sum((n % 997 + 1) * job_seq), sum((n % 997 + 1) * (occurred_at % 1000003))
FROM job_events WHERE n >= ? AND n < ?

-- name: digest_of_job_tags
SELECT
    sum({weight} * length(tag)), sum({weight} * {status_number}), sum({weight} * retry_count),
    sum({weight} * claimable), sum({weight} * (place % 1000003)), sum({weight} * (priority % 1000003))
FROM job_tags

-- name: row_counts
SELECT
    (SELECT count(*) FROM jobs), (SELECT count(*) FROM job_dependencies), (SELECT count(*) FROM job_logs),
    (SELECT count(*) FROM tombstones), (SELECT count(*) FROM job_events), (SELECT count(*) FROM job_tags),
    (SELECT count(*) FROM queues), (SELECT count(*) FROM concurrency_keys), (SELECT count(*) FROM schedules),
    (SELECT count(*) FROM api_tokens)

-- name: recount
SELECT queue, status, count(*), sum(retry_count) FROM jobs GROUP BY queue, status

-- name: rows_of_jobs
SELECT {moved_columns} FROM jobs WHERE uid >= ? AND uid < ? ORDER BY uid

-- name: rows_of_job_dependencies
-- Nobody is unsure of an edge here: see the column in the other dialect.
SELECT dependent_uid, depends_on, policy, state, position, 0 FROM job_dependencies
WHERE dependent_uid >= ? AND dependent_uid < ?

-- name: rows_of_job_logs
SELECT uid, number, at, level, message FROM job_logs WHERE uid >= ? AND uid < ?

-- name: rows_of_tombstones
SELECT uid, id, queue, type, status, idempotency_key, removed_at, request FROM tombstones WHERE uid >= ? AND uid < ?

-- name: rows_of_job_events
SELECT {event_columns} FROM job_events WHERE n >= ? AND n < ? ORDER BY n

-- name: rows_of_concurrency_keys
SELECT queue, key, running_count, window_start, window_count, window_ends_at FROM concurrency_keys

-- name: rows_of_schedules
SELECT id, next_run_at, last_run_at, last_job_id, run_count, updated_at, paused, body FROM schedules

-- name: rows_of_api_tokens
SELECT {token_columns} FROM api_tokens

-- name: workers_heard_since
SELECT id, seen_at FROM workers WHERE seen_at > ? AND body ->> '$.state' IS NOT 'stopped' ORDER BY id

-- name: leases_in_force
-- By owner, in the order of the index; a lease without an end has not ended.
SELECT lease_owner, count(*), max(coalesce(lease_expires_at, 9223372036854775807)) FROM jobs INDEXED BY jobs_held
WHERE lease_token IS NOT NULL AND (lease_expires_at IS NULL OR lease_expires_at > ?) GROUP BY lease_owner

-- name: has_opening
SELECT 1 FROM sqlite_schema WHERE name = 'opening'

-- name: opening
SELECT inode, log_lost_at FROM opening

-- name: mark_open
UPDATE opening SET inode = ?

-- name: record_lost_log
UPDATE opening SET inode = '', log_lost_at = ?

-- name: make_note_of_move
CREATE TABLE IF NOT EXISTS copy_state (note TEXT NOT NULL) STRICT

-- name: copy_state
SELECT note FROM copy_state

-- name: clear_moving
DELETE FROM copy_state

-- name: put_moving
INSERT INTO copy_state VALUES (?)

-- name: clear_jobs
DELETE FROM jobs WHERE uid >= ? AND uid < ?

-- name: clear_job_tags
DELETE FROM job_tags WHERE (tag, uid) IN (
    SELECT carried.value, jobs.uid FROM jobs, json_each(jobs.tags) AS carried
    WHERE jobs.uid >= ? AND jobs.uid < ? AND jobs.tags <> ''
)

-- name: clear_job_dependencies
DELETE FROM job_dependencies WHERE dependent_uid >= ? AND dependent_uid < ?

-- name: clear_job_logs
DELETE FROM job_logs WHERE uid >= ? AND uid < ?

-- name: clear_tombstones
DELETE FROM tombstones WHERE uid >= ? AND uid < ?

-- name: clear_job_events
DELETE FROM job_events WHERE n >= ? AND n < ?

-- name: fill_jobs
INSERT INTO jobs ({moved_columns}) VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?, ?, ?
)

-- name: fill_job_tags
INSERT INTO job_tags (tag, uid, queue, priority, place, claimable, status, retry_count)
SELECT
    carried.value, uid, queue, priority, place, status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY'), status,
    retry_count
FROM jobs, json_each(jobs.tags) AS carried WHERE uid >= ? AND uid < ? AND jobs.tags <> ''

-- name: fill_job_dependencies
INSERT INTO job_dependencies (dependent_uid, depends_on, policy, state, position) VALUES (?, ?, ?, ?, ?)

-- name: fill_job_logs
INSERT INTO job_logs (uid, number, at, level, message) VALUES (?, ?, ?, ?, ?)

-- name: fill_tombstones
INSERT INTO tombstones (uid, id, queue, type, status, idempotency_key, removed_at, request)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: fill_job_events
INSERT INTO job_events ({event_columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: fill_concurrency_keys
INSERT INTO concurrency_keys (queue, key, running_count, window_start, window_count, window_ends_at) VALUES (?, ?, ?, ?, ?, ?)

-- name: fill_schedules
INSERT INTO schedules (id, next_run_at, last_run_at, last_job_id, run_count, updated_at, paused, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: fill_api_tokens
INSERT INTO api_tokens ({token_columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: fill_counts
INSERT INTO queue_counts (queue, status, jobs, retries) {recount}
