"""What the pages of a cutover show: its plan, its judgement, its journal, both stacks side by side."""
