"""The emulated router beside NVIDIA Dynamo's real one: the same prompts through both, and the contract's figures."""
