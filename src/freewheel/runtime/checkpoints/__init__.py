"""What a run writes down so that it can go on, and the model it leaves behind."""
