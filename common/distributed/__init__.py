"""Workers in processes of their own, on one machine or several: Ray's cluster, and how pages get from one to another.

cluster.py places the workers, joining.py starts or joins Ray; nixl_transport.py and object_transport.py move pages;
options.py has the command line.
"""

import os

# Set before ray is imported: without it, a call to Ray after `shutdown` would start or join another cluster.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")


def page_transport(loopback: bool):
    """Return a transport by NIXL, or where it is not installed one by Ray. loopback: for workers of one machine."""
    try:
        from .nixl_transport import NixlTransport

        return NixlTransport(loopback)
    except ImportError:
        from .object_transport import ObjectTransport

        return ObjectTransport()
