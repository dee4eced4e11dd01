"""What stands between Andy and Docker's socket where Andy runs in a container: only what Andy uses passes."""
