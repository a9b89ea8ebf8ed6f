"""The mathematics of a judgement: sequences of bounds and evidence, over arrays alone."""
