"""Our all-reduce against ``DistributedDataParallel`` on gloo."""
