"""What a decode step pays for a matrix, by how it is stored and on which target."""
