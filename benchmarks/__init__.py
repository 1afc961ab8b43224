"""What must be fast, measured: `python -m benchmarks NAME [--json]`. None of it is a test in the suite."""
