"""Children of the test's own process, to be killed or to work beside it: they need not import everything again."""

import os
import signal
import socket
import time
import traceback
import warnings
from contextlib import contextmanager


def fork(target, *arguments):
    """The process id of a child that runs `target` and ends, without what a process does when it ends in peace."""
    with warnings.catch_warnings():  # Python 3.12 warns of threads; the child uses none of their locks
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        target(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_two_processes(target, *arguments, seconds=240):
    """Run ``target(rank, …)`` as ranks 0 and 1; both must end well."""
    children, codes = [fork(target, rank, *arguments) for rank in range(2)], []
    deadline = time.monotonic() + seconds
    while children and time.monotonic() < deadline:
        ended, status = os.waitpid(children[0], os.WNOHANG)
        if ended:
            del children[0]
            codes.append(os.waitstatus_to_exitcode(status))
        time.sleep(0.01)
    for child in children:  # the other one waits for them
        os.kill(child, signal.SIGKILL)
        codes.append(exit_code(child))
    assert codes == [0, 0]


def as_torchrun(work):
    """Run ``work(rank)`` in two processes that know of each other what torchrun tells."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def told(rank):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()})
        work(rank)

    in_two_processes(told)


@contextmanager
def beside(target, *arguments):
    """The process id of a child that runs ``target(ready, …)``, from when it calls ``ready()`` until it is killed."""
    told, tell = os.pipe()
    child = fork(target, lambda: os.write(tell, b"!"), *arguments)
    os.close(tell)
    try:
        assert os.read(told, 1) == b"!"
        yield child
    finally:
        os.close(told)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
