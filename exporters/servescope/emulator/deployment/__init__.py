"""Emulated deployments: replicas, their router and autoscaler, and the stack of them."""
