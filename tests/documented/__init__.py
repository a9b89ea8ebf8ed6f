"""The commands of README.md, CONTRIBUTING.md, exporters/README.md and docs/*.md, as a reader types them."""
