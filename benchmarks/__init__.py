"""What to beat, measured side by side: `python -m benchmarks` runs all and writes RESULTS.md."""
