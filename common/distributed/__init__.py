"""What processes on one machine or many need to work together: Ray's cluster, and the transport of pages."""

import os

# Read when ray is imported. Otherwise a call of Ray after its end would start or join some other Ray.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
