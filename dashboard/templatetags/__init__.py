"""Template tags and filters. They only register functions; the code is in the pages."""
