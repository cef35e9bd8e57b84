"""Training: a loop to read in one sitting, and what stands beside it."""
