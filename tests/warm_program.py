"""The program's libraries are loaded once: in tests subprocess starts a copy of a process that waits at main's
first line (tests/warm_program.cpp). It is a child as any other.

What a copy cannot be given (limits, other descriptors, a session of its own) is started as everywhere.
"""

import os
import pathlib
import runpy
import socket
import subprocess
import sys
import threading

# What libraries read while they are loaded: a process waits for each choice of these.
READ_EARLY = ("OMP_", "GOMP_", "KMP_", "MKL_", "LD_", "MALLOC_", "GLIBC_", "TORCH", "PYTORCH", "ATEN", "C10", "CUDA",
              "HDF5", "OPENSSL")
USUAL = (True, None, None, None, -1, False, -1)  # signals as by default, nobody else's user or group, no session
Start = subprocess.Popen
lock = threading.Lock()
waiting = {}


def waiting_for(program, preload, early):
    """The socket of the process that waits for requests."""
    if (program, early) not in waiting:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        rest = {name: value for name, value in os.environ.items() if not name.startswith(READ_EARLY)}
        with theirs:
            process = Start([program], stdin=theirs, env=rest | dict(early) | {"LD_PRELOAD": str(preload)})
        waiting[program, early] = ours, process
    return waiting[program, early][0]


def copy_of_waiting(words, cwd, env, descriptors):
    """The id of the new process; none where it must be started as everywhere."""
    folder = os.path.abspath(cwd or ".")
    program = os.path.join(folder, words[0])
    preload = pathlib.Path(os.path.realpath(program)).with_name("libheadlab_warm_program.so")
    early = frozenset((name, value) for name, value in env.items() if name.startswith(READ_EARLY))
    if "/" not in words[0] or not preload.is_file() or not os.path.isdir(folder) or "LD_PRELOAD" in env:
        return None
    texts = [folder, str(len(words)), *words, *(f"{name}={value}" for name, value in env.items())]
    with lock:
        asked = waiting_for(program, preload, early)
        try:
            socket.send_fds(asked, [b"".join(os.fsencode(text) + b"\0" for text in texts)], descriptors)
        except OSError:  # too long for a message
            return None
        return int.from_bytes(asked.recv(4), "little", signed=True)


class Copy(Start):
    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags,
                       shell, *rest):
        pipes, how = rest[:6], rest[6:]
        if not (executable or preexec_fn or pass_fds or shell) and close_fds and how == USUAL:
            words = [os.fsdecode(word) for word in ([args] if isinstance(args, (str, bytes, os.PathLike)) else args)]
            environment = {os.fsdecode(name): os.fsdecode(value) for name, value in (env or os.environ).items()}
            descriptors = [own if own >= 0 else n for n, own in enumerate((pipes[0], pipes[3], pipes[5]))]
            pid = copy_of_waiting(words, cwd, environment, descriptors)
            if pid:
                self.pid, self._child_created = pid, True
                self._close_pipe_fds(*pipes)
                return
        super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
                               creationflags, shell, *rest)


subprocess.Popen = Copy

if __name__ == "__main__":  # of a script and its words, whose starts of the program it spares as well
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
