"""Names that users import, each from the room that has it: `calculator`, `models`, `errors`."""
