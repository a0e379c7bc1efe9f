"""How fast messages move between two processes of one machine."""
