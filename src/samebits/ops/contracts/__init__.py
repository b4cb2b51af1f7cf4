"""What is promised of calls of operators, beside what each operator's own folder promises."""
