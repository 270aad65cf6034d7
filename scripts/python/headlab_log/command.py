"""What the commands of this package share: plain messages and the exit codes of headlab."""

import contextlib
import os
import pathlib
import sys
import warnings

from .files import LogError
from .opening import NEWEST, find_run
from .program import program_name
from .run import Run
from .text import printable

UNREADABLE, INTERRUPTED, TERMINATED = 4, 130, 143  # exit codes of `headlab`


def tell(name, what):
    """A line on stderr."""
    print(printable(f"{name}: {what}"), file=sys.stderr)


@contextlib.contextmanager
def told_plainly(name):
    """Runs a command: errors and warnings about runs are one line on stderr, not a traceback.

    What goes wrong with the values of a damaged run can be an exception of any kind; `python -X dev`
    shows where it comes from.
    """
    warnings.showwarning = lambda message, *_: tell(name, message)
    try:
        yield
        sys.stdout.flush()
    except (LogError, ModuleNotFoundError) as error:
        tell(name, error)
        sys.exit(UNREADABLE)
    except BrokenPipeError:  # the reader has seen enough; the interpreter will flush again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        said = [str(part) for part in (error.filename, error.strerror) if part]
        tell(name, ": ".join(said) or error)
        sys.exit(UNREADABLE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        tell(name, f"what the run holds does not fit together ({said}); `{program_name()} inspect "
             "RUN` says whether its log is sound")
        sys.exit(UNREADABLE)


def taken(name, words):
    """The path of the run that a command is given; the one that `@` stands for is named on stderr."""
    if not NEWEST.fullmatch(str(words)):
        return words
    path = find_run(pathlib.Path(words))
    with Run(path) as run:
        tell(name, f"{words} is {path} ({run.label}, {run.state})")
    return path
