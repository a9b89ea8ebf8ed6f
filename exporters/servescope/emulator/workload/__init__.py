"""The traffic: what requests are, generated mixes of them, recorded traces, and the split over deployments."""
