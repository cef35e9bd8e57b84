"""Speed of kasuri next to the plain network and next to other libraries (`python -m benchmarks.run`)."""
