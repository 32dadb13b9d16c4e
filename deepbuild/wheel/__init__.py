"""What is really inside a wheel."""
