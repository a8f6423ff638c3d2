"""Tables that pages show and hand out, made from statistics. No Streamlit."""
