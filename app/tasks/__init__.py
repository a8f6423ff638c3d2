"""What commands and jobs run, as generators of progress.

Heavy libraries are imported when a task starts. No Streamlit.
"""
