"""MoEModel, read from a config and headers, and what runs one."""
