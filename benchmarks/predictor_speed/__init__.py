"""What a predicted step costs beside a trained one."""
