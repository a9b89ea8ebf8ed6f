"""Tests of the emulated stack."""
