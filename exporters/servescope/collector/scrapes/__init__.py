"""Scrapes: fetched at their pace, read, and the recent ones of each target."""
