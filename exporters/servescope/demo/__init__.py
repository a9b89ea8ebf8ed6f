"""`servescope demo`: an emulated cutover under way, and the programs that show and judge it."""
