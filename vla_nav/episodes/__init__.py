"""Recorded navigation episodes as plain typed data; one public format per file."""
