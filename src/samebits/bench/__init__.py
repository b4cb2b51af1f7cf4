"""Speed beside the best alternative in the same run: shapes from model configurations, bits looked at before times."""
