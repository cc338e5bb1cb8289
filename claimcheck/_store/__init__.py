"""What all stores have in common."""
