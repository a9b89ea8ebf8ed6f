"""Small programs that embed the instruments: read them, run them, take from them."""
