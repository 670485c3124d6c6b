"""The demo's dashboard: it prints a link that signs in, and ends by Ctrl-C."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx2

PROGRAM = """
import sys
from pathlib import Path
from leasekeeper.cli.demo_dashboard import keep_open
from leasekeeper.demo.folder import Place
keep_open(Place(folder=Path(sys.argv[1])))
"""


def test_the_dashboard_of_the_demo_stays_open_until_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = next(line.strip() for line in process.stdout if "/ui/enter?code=" in line)
        with httpx2.Client() as client:
            entered = client.get(link)
            assert entered.status_code == 200
            fleet = client.get(link.partition("/ui/")[0] + "/ui/")
            assert "No profiles yet" in fleet.text
        process.send_signal(signal.SIGINT)
        assert "the dashboard is closed" in process.stdout.read()
    assert process.returncode == 0
