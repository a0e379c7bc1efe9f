"""Fewer bits at the cut, on the benchmark tasks, with their controls and floors."""
