"""From all-reduce to servers in the same processes, without losing a sample or a step."""
