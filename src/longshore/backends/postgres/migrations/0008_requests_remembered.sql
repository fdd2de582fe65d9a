-- Which request made a job that is gone: whoever comes with its key and another request is told so.
ALTER TABLE {schema}.tombstones ADD COLUMN request text COLLATE "C";
