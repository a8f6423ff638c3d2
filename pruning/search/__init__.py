"""Search for the number of experts that each layer loses (EvoESAP, arXiv:2603.06003)."""
