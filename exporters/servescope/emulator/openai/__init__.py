"""The emulated stack as clients of OpenAI's API meet it."""
