"""Throughput that the simulator predicts, against real processes on this machine."""
