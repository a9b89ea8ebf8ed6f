"""Reading of TOML tables, secrets and certificates, for every package that has settings."""
