"""What profiling costs, and what its numbers are worth."""
