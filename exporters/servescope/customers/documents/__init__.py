"""What operators and customers read of an export: documents, statements, checks."""
