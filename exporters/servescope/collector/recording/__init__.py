"""Handing scrapes, figures and events to the store."""
