"""A compiler that is made up."""
