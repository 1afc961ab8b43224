"""Faults as data: what can go wrong, when, and what must survive it."""
