"""Tables made from statistics, for pages and downloads. No Streamlit."""
