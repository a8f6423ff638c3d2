"""Dashboard, command line and jobs."""

import os
import sys

if "--stream-layers" in sys.argv:
    # Read when the libraries are loaded, so set before: Arrow's own allocator and the threads of
    # numpy's BLAS reserve address space, of which there may be little.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
