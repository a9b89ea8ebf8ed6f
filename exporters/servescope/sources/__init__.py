"""Read a target's page: parse, find its source map, translate to the contract, inspect."""
