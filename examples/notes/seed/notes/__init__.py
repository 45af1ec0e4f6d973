"""Dated notes in one JSON file."""
