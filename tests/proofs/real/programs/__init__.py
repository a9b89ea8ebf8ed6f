"""Proof on real routers, gateways and servers beside vLLM and Dynamo: their figures against the client's own counts."""
