"""Dashboard, command line and jobs."""

import os
import sys

if "--stream-layers" in sys.argv:
    # Set before the libraries load, which read these once: Arrow's own allocator and the threads
    # of numpy's BLAS reserve address space, which may be scarce.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
