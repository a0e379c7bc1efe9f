"""What a person sees of a run: its folder, its progress, its summary."""
