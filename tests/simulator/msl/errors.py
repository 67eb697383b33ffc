class CompileError(Exception):
    """Metal source that does not compile; the text is the compiler's and names the source's own lines."""


class Unavailable(Exception):
    """The simulator cannot work here; the text says what is missing."""
