"""Routers: v2's, which knows what every worker has cached, and v1's, which knows only how busy each one is.

`configuration` holds a router's weights and runtime, `placement` what becomes of a request. `index` knows the caches,
`events` carries their changes, `following` keeps the index up to date, over restarts with `snapshots`. `kv` and
`least_load` decide, `waiting` orders the requests that must wait, `replicas` runs several routers at once.
"""
