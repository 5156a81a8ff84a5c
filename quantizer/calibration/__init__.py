"""What is learned from text: the second moments of every matrix's inputs."""
