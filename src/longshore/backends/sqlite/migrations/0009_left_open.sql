-- Detects an unclean close: the inode of the file while a process may write it, and when its log was found missing.
CREATE TABLE opening (inode TEXT NOT NULL, log_lost_at INTEGER);
INSERT INTO opening VALUES ('', NULL);
