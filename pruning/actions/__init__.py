"""The actions: what takes a while and is asked for by a command, a page, a recipe or Python.

A file for each, which ends in its `ACTION`; `listing` names them all. The topmost room of
`pruning`: nothing here is imported by another, and no action imports another.
"""
