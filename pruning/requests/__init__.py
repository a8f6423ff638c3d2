"""What a job is asked to do: validated values, kept in the job table as JSON. No Streamlit."""
