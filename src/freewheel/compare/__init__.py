"""What is better: arms and controls, paired by seed, in one table with intervals."""
