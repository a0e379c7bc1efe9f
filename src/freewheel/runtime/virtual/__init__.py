"""A pipeline's own roles in one process and in virtual time: turns, clocks, cards, costs."""
