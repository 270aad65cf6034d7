"""What tests of scripts/studies share: a study as a call, without the start of a Python and its libraries."""

import contextlib
import io
import subprocess
import sys
from unittest import mock

from conftest import ROOT, program

sys.path.insert(0, str(ROOT / "scripts/studies"))
from headlab_program import ProgramError  # noqa: E402


def study(module, *arguments):
    """What its script ends with, prints and says."""
    words = [f"{module.__name__}.py", "--program", program(), *map(str, arguments)]
    printed, said, code = io.StringIO(), io.StringIO(), 0
    with (contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said),
          mock.patch.object(sys, "argv", words)):
        try:
            module.main()
        except SystemExit as end:
            code = end.code
        except ProgramError as error:  # as its last lines do
            code = 1
            print(error, file=said)
    return subprocess.CompletedProcess(words, code, printed.getvalue(), said.getvalue())
