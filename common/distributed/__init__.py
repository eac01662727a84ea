"""What processes on one machine or many need to work together: Ray's cluster, and the transport of pages."""
