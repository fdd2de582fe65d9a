"""What others need to test against Longshore: the conformance kit for backend authors."""
