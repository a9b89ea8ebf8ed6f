"""The alerts on the serving stack: replicas, scaling, routing, caches, speculation, phases, and a cutover."""
