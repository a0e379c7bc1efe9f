"""Bytes against accuracy where data decides what crosses, beside local_sgd and plain codecs."""
