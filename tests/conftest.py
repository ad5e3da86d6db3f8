"""Puts tests/ on the path, so that every test can import golden_data and reference."""
