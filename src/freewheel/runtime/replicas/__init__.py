"""Whole copies of a model on every worker, joined by all-reduce."""
