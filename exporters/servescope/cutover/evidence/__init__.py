"""The evidence of a judgement: increments folded by arm, how complete they are, and what people decided."""
