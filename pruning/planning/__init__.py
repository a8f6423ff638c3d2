"""From choices to rankings and plans, alike for pages, commands and jobs. No Streamlit."""
