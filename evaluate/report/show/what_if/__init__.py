"""What the page's sliders read: the facts of the rule, the report's settings, and commands."""
