"""What the commands of this package share: plain messages and the exit codes of headlab."""

import contextlib
import os
import pathlib
import sys
import warnings

from .files import LogError
from .opening import NEWEST, find_run
from .run import Run

UNREADABLE, INTERRUPTED, TERMINATED = 4, 130, 143  # exit codes of `headlab`


@contextlib.contextmanager
def told_plainly(name):
    """Runs a command: errors and warnings about runs are one line on stderr, not a traceback."""
    warnings.showwarning = lambda message, *_: print(f"{name}: {message}", file=sys.stderr)
    try:
        yield
        sys.stdout.flush()
    except (LogError, ModuleNotFoundError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(UNREADABLE)
    except BrokenPipeError:  # the reader has seen enough; the interpreter will flush again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"{name}: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        sys.exit(UNREADABLE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def taken(name, words):
    """The path of the run that a command is given; the one that `@` stands for is named on stderr."""
    if not NEWEST.fullmatch(str(words)):
        return words
    path = find_run(pathlib.Path(words))
    with Run(path) as run:
        print(f"{name}: {words} is {path} ({run.label}, {run.state})", file=sys.stderr)
    return path
