"""Where the processes of a run start, and how they end."""
