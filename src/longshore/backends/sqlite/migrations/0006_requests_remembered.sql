-- Which request made a job that is gone: whoever comes with its key and another request is told so.
ALTER TABLE tombstones ADD COLUMN request TEXT;
