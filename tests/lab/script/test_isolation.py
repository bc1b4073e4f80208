"""What a traced script starts: no network, nothing that outlives it, and a time limit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.lab.script.run import PACKAGES, run_supervised

ISOLATED = f"""
import subprocess, sys
from pathlib import Path
from gpu_mem_calculator.lab.script import child as isolation
{{before}}
isolation.isolate(Path({{folder!r}}), {PACKAGES!r})
subprocess.run([sys.executable, "-c", {{child!r}}])
"""
CONNECT = "import socket; socket.create_connection(({host!r}, {port}), 2); print('connected')"


def output(folder: Path, child: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """What a Python process says that an isolated process starts."""
    code = ISOLATED.format(folder=str(folder), child=child, before=before)
    environment = os.environ | {"PYTHONPATH": PACKAGES}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )


def has_namespaces() -> bool:
    """Whether this kernel gives a process a network of its own."""
    done = subprocess.run(["unshare", "-rn", "true"], capture_output=True)
    return done.returncode == 0


@pytest.mark.skipif(not has_namespaces(), reason="the kernel has no namespaces for users")
def test_a_child_is_in_a_network_of_its_own(tmp_path: Path) -> None:
    """A server of this machine cannot be reached from it, and its own loopback works."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = output(tmp_path, CONNECT.format(host="127.0.0.1", port=port))
    assert "connected" not in found.stdout
    assert "ConnectionRefusedError" in found.stderr
    own = "import socket as s; a = s.create_server(('127.0.0.1', 0)); "
    own += "s.create_connection(a.getsockname()); print('connected')"
    assert output(tmp_path, own).stdout == "connected\n"


def test_without_namespaces_python_is_guarded(tmp_path: Path) -> None:
    """And a sentence says what is not."""
    refused = "isolation.own_network = lambda: False"
    found = output(tmp_path, CONNECT.format(host="10.1.2.3", port=80), refused)
    assert "NetworkError: the script asked for 10.1.2.3" in found.stderr
    assert "other programs are not" in found.stderr
    assert "connected" not in found.stdout


def ended(pid: int) -> bool:
    """Whether a process has ended, within seconds."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


STARTS = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(float(sys.argv[2]))
sys.exit(7)
"""


def test_what_it_starts_does_not_outlive_it(tmp_path: Path) -> None:
    """Also in a session of its own; the exit code is the script's."""
    file = tmp_path / "pid"
    assert run_supervised([sys.executable, "-c", STARTS, str(file), "0"], 60) == 7
    assert ended(int(file.read_text()))


@pytest.mark.proof
def test_after_its_time_everything_is_ended(tmp_path: Path) -> None:
    """None says that it was late."""
    file = tmp_path / "pid"
    begin = time.monotonic()
    assert run_supervised([sys.executable, "-c", STARTS, str(file), "300"], 3) is None
    assert time.monotonic() - begin < 60
    assert ended(int(file.read_text()))


def test_a_killed_trace_leaves_nothing(tmp_path: Path) -> None:
    """After kill -9 of our process the supervisor gets a signal, and ends the rest."""
    file = tmp_path / "pid"
    words = [sys.executable, "-c", STARTS, str(file), "300"]
    code = (
        f"from gpu_mem_calculator.lab.script.run import run_supervised; run_supervised({words}, 0)"
    )
    environment = os.environ | {"PYTHONPATH": PACKAGES}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        while not (file.exists() and file.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    assert ended(int(file.read_text()))


def test_a_signal_of_the_script_is_seen() -> None:
    """As a negative exit code, as of any process."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_supervised([sys.executable, "-c", code], 60) == -signal.SIGKILL


def test_a_script_that_never_steps(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One sentence, exit code 2."""
    pytest.importorskip("torch")
    script = tmp_path / "waits.py"
    script.write_text("import time\ntime.sleep(300)\n")
    assert main(["trace", "--timeout", "2", "--", "python", str(script)]) == 2
    err = capfd.readouterr().err
    assert "made no 2 steps within 2 seconds, and was ended; give it more by --timeout" in err


def test_a_time_limit_is_for_a_script(capfd: pytest.CaptureFixture[str]) -> None:
    """It has no meaning for a run file."""
    pytest.importorskip("torch")
    assert main(["trace", "--preset", "gpt2", "--timeout", "8"]) == 2
    assert "--timeout is for a script" in capfd.readouterr().err
