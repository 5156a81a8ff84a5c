"""Bundle in, smaller bundle out, with the loss measured."""
