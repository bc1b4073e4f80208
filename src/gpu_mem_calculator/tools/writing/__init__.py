"""What writers of other tools' files share: the result, the table of formats, what is not said."""
