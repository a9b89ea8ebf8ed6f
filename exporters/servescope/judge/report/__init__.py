"""What people and programs read of a judgement: text, drawings, reports, schemas."""
