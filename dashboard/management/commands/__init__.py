"""Commands of the server: first start, move to PostgreSQL, message catalogues."""
