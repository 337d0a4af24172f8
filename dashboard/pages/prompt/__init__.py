"""One prompt over steps, attempts and runs."""
