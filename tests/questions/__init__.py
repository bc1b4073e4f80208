"""Questions that people may ask, drawn by numbered seeds, and laws that every answer keeps."""
