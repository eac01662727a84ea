"""Workers in processes of their own, on one machine or several: Ray's cluster, connections, and the page transport.

cluster.py places the workers, joining.py starts or joins Ray; channel.py connects router and workers;
tcp_transport.py and the files it imports (tcp_transfer.py, page_handshake.py, page_bytes.py, interruptible_socket.py)
move pages; ranked.py runs one worker on several ranks; options.py has the command line.
"""

import os

# Set before ray is imported: without it, a call to Ray after `shutdown` would start or join another cluster.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
