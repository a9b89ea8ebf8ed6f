"""The judge as a program: plans, the journal, watching, the HTTP gate, the report."""
