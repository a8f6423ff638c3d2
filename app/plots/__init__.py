"""Every figure of the dashboard as data: its table, its drawing, its sentence; no streamlit."""
