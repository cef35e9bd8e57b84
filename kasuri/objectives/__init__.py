"""What training minimises, and what changes with the training step."""
