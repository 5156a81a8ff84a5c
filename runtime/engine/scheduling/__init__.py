"""What runs next, decided from token counts alone."""
