"""One command of the command line a file; imported when it is chosen."""
