"""What the readiness page shows of a configuration that is to be migrated."""
