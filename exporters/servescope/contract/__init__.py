"""The single source: metrics, figures, bands, expressions, identity and samples."""
