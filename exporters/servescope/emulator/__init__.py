"""An emulated serving stack: a v1 and a v2 deployment under one traffic stream, with the real instruments embedded.

Each part behaves as its documents say and knows nothing of the others: `workload` makes requests, `cache` and
`engine` serve them, `router` and `autoscaler` place and size, `stack` joins them to deployments, `server` shows them
as a scraper sees a real one. All of them share one `clock`.
"""
