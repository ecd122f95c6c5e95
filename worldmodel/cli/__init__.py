"""The command line: the front door, and the only folder here that may import datasets/ and policies/.

A command is a function; its docstring is the help and its arguments are the options. Its module is imported when the
command is chosen, so that a missing simulator matters only to who uses it.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import tyro

from worldmodel import __version__
from worldmodel.cli.commands import COMMANDS, GROUPS, RUN_MODELS
from worldmodel.errors import UserError, out_of_memory
from worldmodel.heap import keep_freed_memory
from worldmodel.options import with_backend


def main(argv: list[str] | None = None) -> int:
    """Run a command; bad input is one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else "--help"
    if name in GROUPS and argv[1:2] not in ([], ["-h"], ["--help"]):
        name, argv = f"{name} {argv[1]}", argv[1:]
    if name in ("-h", "--help", *GROUPS):
        print(_overview(name if name in GROUPS else ""))
        return 0
    if name == "--version":
        print(f"worldmodel {__version__}")
        return 0
    try:
        if name not in COMMANDS:
            raise UserError(f"no command '{name}'; there are {', '.join(COMMANDS)}")
        command = COMMANDS[name]
        keep_freed_memory()
        function = getattr(importlib.import_module(command.module), command.function)
        if name in ("train", "estimate"):  # their options are the fields of the configuration that comes first
            return function(argv[1:])
        function = _with_positional(function, command.positional)
        if name.split()[0] in RUN_MODELS:
            function = with_backend(function)
        return tyro.cli(function, prog=f"worldmodel {name}", args=argv[1:])
    except UserError as error:
        print(_line(error), file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        print(_line(f"out of memory: {str(error).strip() or 'no more can be had'}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _line(error: UserError | str) -> str:
    """The error and its notes as one line."""
    text = "; ".join((str(error), *getattr(error, "__notes__", ())))
    return "error: " + " ".join(text.split())


def _overview(group: str) -> str:
    """The commands whose names begin with `group`."""
    lines = "\n".join(f"  {name:23} {command.help}" for name, command in COMMANDS.items() if name.startswith(group))
    return f"usage: worldmodel COMMAND [OPTIONS]\n\n{lines}\n\nworldmodel COMMAND --help explains one, with an example."


def _with_positional(function: Callable[..., int], names: tuple[str, ...]) -> Callable[..., int]:
    """The same function, with some arguments given by their place on the command line."""
    signature = inspect.signature(function, eval_str=True)
    parameters = [
        p.replace(annotation=tyro.conf.Positional[p.annotation]) if p.name in names else p
        for p in signature.parameters.values()
    ]

    def command(*args: Any, **options: Any) -> int:
        return function(*args, **options)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
    return command
