-- name: put_queue(name, paused, running_limit, per_key, rate_count, rate_per, key_rate_count, key_rate_per,
--     window_start, window_count, keep_finished, keep_dead, keep_events)
INSERT OR REPLACE INTO queues ({queue_columns}) VALUES ({parameters})

-- name: known_queues()
SELECT queue FROM queue_counts UNION SELECT name FROM queues ORDER BY 1

-- name: remember_queues(names)
INSERT OR IGNORE INTO queue_counts (queue, status, jobs, retries)
SELECT value, {accept_sources}, 0, 0 FROM json_each(:names)

-- name: all_blocked(queue)
SELECT uid FROM jobs INDEXED BY jobs_blocked WHERE queue = :queue AND blocked = 1

-- name: running_by_key(queue)
SELECT concurrency_key, count(*) FROM jobs INDEXED BY jobs_held
WHERE lease_token IS NOT NULL AND queue = :queue AND concurrency_key IS NOT NULL GROUP BY concurrency_key

-- name: put_key(queue, key, running_count, window_start, window_count, window_ends_at)
INSERT OR REPLACE INTO concurrency_keys ({key_columns}) VALUES ({parameters})

-- name: forget_keys(queue, keys)
DELETE FROM concurrency_keys WHERE queue = :queue AND key IN (SELECT value FROM json_each(:keys))
