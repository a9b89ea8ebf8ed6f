"""The console: Streamlit pages over the store that the collector writes; run by `servescope console`."""
