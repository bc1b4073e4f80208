"""Laws that hold for every answer, whatever the question."""
