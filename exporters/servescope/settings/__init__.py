"""What reads settings of every room: TOML tables, secrets and certificates."""
