"""`servescope import`: the past that a Prometheus holds, written into a store."""
