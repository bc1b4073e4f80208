"""The error of bad input, as users import it; it is `runfile/text/errors.py`."""

from ..runfile.text.errors import InputError

__all__ = ["InputError"]
