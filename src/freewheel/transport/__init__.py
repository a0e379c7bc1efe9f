"""How bytes move between the processes of a run: one interface, several carriers."""
