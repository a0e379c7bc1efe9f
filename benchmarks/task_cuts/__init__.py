"""Where to cut the models of the benchmark tasks: where the higher floor is lowest."""
