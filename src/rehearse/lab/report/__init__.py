"""What people look at: terminal tables, plots, pictures, the page."""
