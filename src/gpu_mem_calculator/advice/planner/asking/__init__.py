"""A question in a user's words, and who answers it."""
