"""What the servers of the stages share."""
