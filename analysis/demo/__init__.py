"""The demo model: its corpora, tasks and checkpoint; `tools/demo` builds it."""
