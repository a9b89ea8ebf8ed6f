"""The collector: from targets and their expositions to contract samples, derived figures, a store and an API."""
