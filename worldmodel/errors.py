"""What a user can do wrong, told in one line."""


class UserError(Exception):
    """Bad input: the message is one clear line that names the file, key or place. The command line exits with 2."""
