"""The same ideas on real operating-system processes."""
