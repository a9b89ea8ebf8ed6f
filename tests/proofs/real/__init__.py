"""Proof on real engines: real vLLM and real Dynamo under traffic, their figures against the client's own counts."""
