"""Where a budget of bytes buys the most quality."""
