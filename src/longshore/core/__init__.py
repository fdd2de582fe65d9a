"""The pure core: what a job is, which moves are legal, and what follows what."""
