"""Our vanilla pipeline against ``torch.distributed.pipelining``."""
