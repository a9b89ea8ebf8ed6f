"""What is checked of requests and messages before Streamlit sees them."""
