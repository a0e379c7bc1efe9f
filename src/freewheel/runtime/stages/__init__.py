"""A model cut into stages: the schedule of micro-batches, the cuts, and what may pass them by."""
