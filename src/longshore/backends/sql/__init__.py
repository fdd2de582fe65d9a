"""What the SQL stores share: rows and records, and the port written once over named statements."""
