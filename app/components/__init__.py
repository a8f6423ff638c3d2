"""Own Streamlit components, where no chart library serves."""
