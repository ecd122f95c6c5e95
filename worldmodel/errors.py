"""What a user can do wrong, told in one line."""


class UserError(Exception):
    """Bad input: the message is one clear line that names the file, key or place. The command line exits with 2."""


class Diverged(UserError):
    """A model has made what is not finite. A training loop may catch it and skip the step; elsewhere it is an end."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch's own is a RuntimeError, with no type of its own on CPUs."""
    signs = ("out of memory", "can't allocate memory", "size calculation overflowed")
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)
