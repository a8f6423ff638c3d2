"""What a worker runs for each kind of request, as generators of progress. No Streamlit."""
