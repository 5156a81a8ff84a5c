"""Whether, and how well, a model will run here, said before it is loaded."""
