"""`servescope import`: the past that a Prometheus holds, taken into a store."""
