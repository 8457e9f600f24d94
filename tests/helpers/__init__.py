"""What several test folders share."""
