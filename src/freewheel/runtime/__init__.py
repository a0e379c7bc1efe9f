"""Who does the work: the coordinator, and the roles that it leads."""
