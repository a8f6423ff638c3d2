"""Custom Streamlit components that no chart library offers."""
