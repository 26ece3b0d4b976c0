"""Chaos with real processes: faults at random, and every reply held against the history of its key. See docs/testing.md."""
