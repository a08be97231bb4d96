"""A few layers at M3's true widths, as one GPU runs them."""
