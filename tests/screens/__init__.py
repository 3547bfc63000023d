"""Screens of a real terminal, kept as text and compared: see test_screens.py."""
